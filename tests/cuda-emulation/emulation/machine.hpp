// The machine that stands for a multiprocessor: it runs the blocks of a grid, each thread of a
// block a fiber.
//
// Fibers are left where a thread must wait: at a barrier, or where the lanes of a warp meet. In
// between a thread runs alone, so a kernel's plain code costs what it costs in C++. Threads run
// forward or backward: who reads what another thread of the block writes, without a barrier in
// between, gets it right in one order at most. A thread that waits hands over to the next of its
// warp itself, because that is most of what an emulated kernel does.
//
// What a GPU leaves undefined ends the launch with a message: lanes that meet at different places,
// threads that wait for some who never come, addresses that are not aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#else
#define ADDRESS_SANITIZER 0
#endif

// The system's own way to change stacks costs two calls into the kernel each time.
#if defined(__linux__) && defined(__x86_64__) && !defined(LONGVIEW_UCONTEXT)
#define SWITCH_X86_64 1
#elif defined(__linux__) && defined(__aarch64__) && !defined(LONGVIEW_UCONTEXT)
#define SWITCH_AARCH64 1
// Leaves a stack for another; what a callee must keep is kept on the stack that is left.
extern "C" void lv_switch(void** save, void* load);
#else
#define SWITCH_UCONTEXT 1
#endif

namespace lv {

#if SWITCH_X86_64
// Leaves a stack for another. Neither a call nor a return: a processor predicts returns by the
// calls before them, which were another thread's. The bytes below the stack's end are the caller's
// too.
static inline __attribute__((always_inline)) void switch_stacks(void** save, void* load) {
    __asm__ volatile(
        "leaq -128(%%rsp), %%rsp\n\t"
        "pushq %%rbp\n\t"
        "leaq 1f(%%rip), %%rax\n\t"
        "pushq %%rax\n\t"
        "movq %%rsp, (%%rdi)\n\t"
        "movq %%rsi, %%rsp\n\t"
        "popq %%rax\n\t"
        "jmp *%%rax\n"
        "1:\n\t"
        "popq %%rbp\n\t"
        "leaq 128(%%rsp), %%rsp"
        : "+D"(save), "+S"(load)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0",
          "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
          "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}
#elif SWITCH_AARCH64
static inline void switch_stacks(void** save, void* load) { lv_switch(save, load); }
#else
// Contexts are changed where they are known, in machine.cpp.
static inline void switch_stacks(void**, void*) {}
#endif

constexpr u32 LANES = 32;
constexpr u32 MAX_THREADS = 1024;
// What a lane can hand in where lanes meet.
constexpr size_t SLOT_BYTES = 48;
// Shared memory of a block: the most that a GPU of today has.
constexpr size_t SHARED_BYTES = 227 * 1024;
constexpr u32 MAX_COPIES = 256;

struct Dim3 {
    u32 x, y, z;
};

// A kernel as its source declares it, and the one before it in its file.
struct Kernel {
    const char* name;
    const char* args_name;
    u32 args_size;
    u32 threads;
    void (*run)(const void* args);
    const Kernel* next;
};

// A field of a struct, as the compiler placed it.
struct Field {
    const char* name;
    u32 offset;
    u32 size;
};

struct Args {
    const char* name;
    u32 size;
    u32 n_fields;
    const Field* fields;
};

// A source file; build.rs writes these.
struct File {
    const char* stem;
    const Kernel* const* last_kernel;
    const Args* args;
    u32 n_args;
    // The compute capability that it was compiled for, times ten.
    u32 capability;
    // Whether it reads otherwise for other ones.
    bool is_by_capability;
};

enum class State : u8 { Ready, AtMeeting, AtBarrier, Left };

struct Copy {
    void* to;
    const void* from;
};

// A thread's asynchronous copies that nobody has waited for yet.
struct Copies {
    u32 n;
    u32 n_groups;
    Copy list[MAX_COPIES];
    u32 group_ends[MAX_COPIES];
};

// What the lanes of a warp hand in, each in its slot.
typedef u8 Side[LANES][SLOT_BYTES];

struct Warp {
    // Meetings that are over.
    u64 n_meetings;
    u32 n_arrived;
    int line;
    // Two sides: a lane may already hand in for the next meeting while another still reads.
    alignas(16) Side slots[2];
};

struct Machine;

struct Thread {
    void* context;
    Machine* machine;
    Warp* warp;
    Dim3 index;
    u32 lane;
    State state;
    int line;
    u64 n_meetings;
    Copies* copies;
    void* fake_stack;
    // The next of its warp, round and round in the order of threads.
    Thread* next;
};

// One library: no call and no variable of these is looked up while it runs.
#pragma GCC visibility push(hidden)

// The thread that runs now on this thread of the system.
extern __thread Thread* current;
// Where the block lies.
extern __thread Dim3 current_block;
extern __thread Dim3 current_grid;
extern __thread Dim3 current_block_size;

// Ends the launch with a message. Does not return.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Waits for all threads of the block that have not left.
void barrier(int line);

// Says that this lane is at `line`. Null once all lanes of the warp are, else the stack to go to
// until they are.
void* arrive(Warp& warp, int line);

// Shared memory of the block for the declaration at `site`, the same for all its threads.
void* shared(const void* site, size_t size, size_t align);

// The shared memory that the launch asked for.
void* dynamic_shared();

// What the lanes hand in, as the lanes see it.
template <typename T> struct Slots {
    const u8 (*slots)[SLOT_BYTES];

    T operator[](u32 lane) const {
        T value;
        std::memcpy(&value, slots[lane % LANES], sizeof(T));
        return value;
    }
};

#pragma GCC visibility pop

// All lanes of the warp hand something in. The last one makes something of it, if there is anything
// to make: once for all lanes costs less than each for itself.
template <typename T>
inline __attribute__((always_inline)) Side& hand_in(const T& mine, int line,
                                                    void (*make)(Side& side)) {
    static_assert(sizeof(T) <= SLOT_BYTES);
    Thread& thread = *current;
    Warp& warp = *thread.warp;
    Side& side = warp.slots[thread.n_meetings % 2];
    std::memcpy(side[thread.lane], &mine, sizeof(T));
    thread.n_meetings++;
    const bool is_last = warp.n_arrived == LANES - 1;
    void* other;
#if !SWITCH_UCONTEXT && !ADDRESS_SANITIZER
    // What `arrive` does for a lane between the first and the last, mostly: the next one follows.
    Thread& next = *thread.next;
    if (warp.n_arrived != 0 && !is_last && warp.line == line && next.state == State::Ready) {
        warp.n_arrived++;
        thread.state = State::AtMeeting;
        thread.line = line;
        current = &next;
        other = next.context;
    } else
#endif
    {
        other = arrive(warp, line);
    }
    if (other != nullptr) {
        switch_stacks(&thread.context, other);
    } else if (make != nullptr && is_last) {
        make(side);
    }
    return side;
}

// All lanes of the warp hand something in and see what the others did.
template <typename T>
inline __attribute__((always_inline)) Slots<T> meet(const T& mine, int line) {
    return Slots<T>{hand_in(mine, line, nullptr)};
}

// All lanes of the warp hand something in; each sees what `make` has left in its slot.
template <typename Made, typename T>
inline __attribute__((always_inline)) Made meet(const T& mine, int line,
                                                void (*make)(Side& side)) {
    static_assert(sizeof(Made) <= SLOT_BYTES);
    const Side& side = hand_in(mine, line, make);
    Made made;
    std::memcpy(&made, side[current->lane], sizeof(Made));
    return made;
}

}  // namespace lv
