// A stand-in for NVIDIA's driver library: as much of it as crates/cuda/src/nvidia.rs calls, so that
// this code runs without a GPU too. Copies and fills happen at once, kernels do nothing.
//
// It is strict where the real one is: a call without a current context fails, as does one with a
// stream or a graph of another context; new memory holds garbage. A test tells it which call is to
// fail next, and asks which context is current.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

typedef unsigned long long u64;

namespace {

enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400
};

struct Context {};

// A stream, an event, a module or a graph.
struct Object {
    Context* context;
};

// CUDA_KERNEL_NODE_PARAMS_v2.
struct Launch {
    void* func;
    unsigned grid[3], block[3], shared;
    void** params;
    void** extra;
    void* kern;
    Context* context;
};

// Of a kernel: there are no others.
struct Node {};

struct Graph : Object {
    std::vector<Node*> nodes;
};

thread_local std::vector<Context*> stack;
std::string failing;
int failure = OUT_OF_MEMORY;
unsigned n_calls = 0;

Context* current() { return stack.empty() ? nullptr : stack.back(); }

int begin(const char* name, bool needs_context = true) {
    n_calls++;
    if (failing == name) {
        failing.clear();
        return failure;
    }
    return needs_context && current() == nullptr ? INVALID_CONTEXT : SUCCESS;
}

int begin_with(const char* name, const Object* object) {
    const int result = begin(name);
    return result == SUCCESS && object->context != current() ? INVALID_HANDLE : result;
}

bool is_word_aligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % 8 == 0; }

int check_launch(const Launch& launch) {
    return launch.func != nullptr && is_word_aligned(launch.params[0]) ? SUCCESS : INVALID_VALUE;
}

void* garbage(size_t bytes) {
    void* memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(memory, 0xab, bytes);
    return memory;
}

template <typename T> int make(const char* name, T** object) {
    const int result = begin(name);
    if (result == SUCCESS) {
        *object = new T();
        (*object)->context = current();
    }
    return result;
}

template <typename T> int destroy(const char* name, T* object) {
    const int result = begin_with(name, object);
    if (result == SUCCESS) {
        delete object;
    }
    return result;
}

}  // namespace

#define BEGIN() if (const int result = begin(__func__)) return result
#define BEGIN_WITH(object) if (const int result = begin_with(__func__, object)) return result

extern "C" {

// What the test asks and says.
void lv_fail(const char* name, int with) {
    failing = name;
    failure = with;
}
bool lv_has_failed() { return failing.empty(); }
unsigned lv_n_calls() { return n_calls; }
void* lv_new_context() {
    stack.push_back(new Context());
    return current();
}
void lv_leave_context() { stack.pop_back(); }
void* lv_current() { return current(); }
size_t lv_depth() { return stack.size(); }

int cuInit(unsigned) { return begin(__func__, false); }
int cuDriverGetVersion(int* version) {
    *version = 13000;
    return begin(__func__, false);
}
int cuGetErrorString(int, const char** text) {
    *text = "said by the stand-in";
    return SUCCESS;
}
int cuGetErrorName(int, const char** text) {
    *text = "STAND_IN";
    return SUCCESS;
}
int cuDeviceGetCount(int* count) {
    *count = 1;
    return begin(__func__, false);
}
int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return begin(__func__, false);
}
int cuDeviceGetName(char* name, int length, int) {
    strncpy(name, "stand-in", static_cast<size_t>(length));
    return begin(__func__, false);
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
    *bytes = 1u << 30;
    return begin(__func__, false);
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    const char* integrated = getenv("LONGVIEW_STAND_IN_INTEGRATED");
    switch (attribute) {
        case 75: *value = 9; break;
        case 76: *value = 0; break;
        case 16: *value = 4; break;
        case 18: *value = integrated != nullptr; break;
        case 97: *value = 100 << 10; break;
        default: return INVALID_VALUE;
    }
    return begin(__func__, false);
}

int cuCtxCreate_v2(Context** context, unsigned, int) {
    if (const int result = begin(__func__, false)) return result;
    *context = new Context();
    stack.push_back(*context);
    return SUCCESS;
}
int cuCtxDestroy_v2(Context* context) {
    if (const int result = begin(__func__, false)) return result;
    if (current() == context) {
        stack.pop_back();
    }
    delete context;
    return SUCCESS;
}
int cuCtxPushCurrent_v2(Context* context) {
    if (const int result = begin(__func__, false)) return result;
    stack.push_back(context);
    return SUCCESS;
}
int cuCtxPopCurrent_v2(Context** context) {
    BEGIN();
    *context = current();
    stack.pop_back();
    return SUCCESS;
}
int cuCtxSetCurrent(Context* context) {
    if (const int result = begin(__func__, false)) return result;
    if (!stack.empty()) {
        stack.pop_back();
    }
    if (context != nullptr) {
        stack.push_back(context);
    }
    return SUCCESS;
}
int cuCtxSynchronize() { return begin(__func__); }

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    *free = 1u << 20;
    *total = 1u << 30;
    return begin(__func__);
}
int cuMemAlloc_v2(u64* address, size_t bytes) {
    BEGIN();
    *address = reinterpret_cast<u64>(garbage(bytes));
    return SUCCESS;
}
int cuMemFree_v2(u64 address) {
    BEGIN();
    free(reinterpret_cast<void*>(address));
    return SUCCESS;
}
int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    BEGIN();
    *memory = garbage(bytes);
    return SUCCESS;
}
int cuMemFreeHost(void* memory) {
    BEGIN();
    free(memory);
    return SUCCESS;
}
int cuMemsetD8Async(u64 address, unsigned char value, size_t bytes, Object* stream) {
    BEGIN_WITH(stream);
    memset(reinterpret_cast<void*>(address), value, bytes);
    return SUCCESS;
}
int cuMemcpyAsync(u64 to, u64 from, size_t bytes, Object* stream) {
    BEGIN_WITH(stream);
    memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return SUCCESS;
}

int cuStreamCreate(Object** stream, unsigned) { return make(__func__, stream); }
int cuStreamDestroy_v2(Object* stream) { return destroy(__func__, stream); }
int cuStreamSynchronize(Object* stream) { return begin_with(__func__, stream); }
int cuStreamWaitEvent(Object* stream, Object*, unsigned) { return begin_with(__func__, stream); }
int cuEventCreate(Object** event, unsigned) { return make(__func__, event); }
int cuEventDestroy_v2(Object* event) { return destroy(__func__, event); }
int cuEventRecord(Object* event, Object* stream) {
    BEGIN_WITH(event);
    return stream->context == current() ? SUCCESS : INVALID_HANDLE;
}
int cuEventSynchronize(Object* event) { return begin_with(__func__, event); }

int cuModuleLoadData(Object** module, const void* image) {
    const bool is_ptx = strstr(static_cast<const char*>(image), ".version") != nullptr;
    return is_ptx ? make(__func__, module) : INVALID_VALUE;
}
int cuModuleGetFunction(Object** function, Object* module, const char*) {
    BEGIN_WITH(module);
    *function = module;
    return SUCCESS;
}
int cuFuncGetAttribute(int* value, int, Object* function) {
    *value = 1024;
    return begin_with(__func__, function);
}
int cuFuncSetAttribute(Object* function, int, int) { return begin_with(__func__, function); }
int cuLaunchKernel(Object* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   unsigned, Object* stream, void** params, void**) {
    BEGIN_WITH(function);
    const bool is_valid = stream->context == current() && is_word_aligned(params[0]);
    return is_valid ? SUCCESS : INVALID_VALUE;
}

int cuGraphCreate(Graph** graph, unsigned) { return make(__func__, graph); }
int cuGraphDestroy(Graph* graph) {
    BEGIN();
    for (Node* node : graph->nodes) {
        delete node;
    }
    delete graph;
    return SUCCESS;
}
static int add(Node** node, Graph* graph, Node* const* before, size_t n_before) {
    const bool is_chain = n_before == (graph->nodes.empty() ? 0 : 1)
        && (n_before == 0 || *before == graph->nodes.back());
    if (!is_chain) return INVALID_VALUE;
    graph->nodes.push_back(new Node());
    *node = graph->nodes.back();
    return SUCCESS;
}
int cuGraphAddKernelNode_v2(Node** node, Graph* graph, Node* const* before, size_t n_before,
                            const Launch* launch) {
    BEGIN();
    if (const int result = check_launch(*launch)) return result;
    return add(node, graph, before, n_before);
}
// What is launched keeps the nodes of its graph, which must outlive it here.
int cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, u64) {
    const int result = make(__func__, exec);
    if (result == SUCCESS) {
        (*exec)->nodes = graph->nodes;
    }
    return result;
}
int cuGraphExecDestroy(Graph* exec) { return destroy(__func__, exec); }
int cuGraphExecKernelNodeSetParams_v2(Graph* exec, Node* node, const Launch* launch) {
    BEGIN_WITH(exec);
    return node == nullptr ? static_cast<int>(INVALID_VALUE) : check_launch(*launch);
}
int cuGraphLaunch(Graph* exec, Object* stream) {
    BEGIN_WITH(exec);
    return stream->context == current() ? SUCCESS : INVALID_HANDLE;
}

}  // extern "C"
