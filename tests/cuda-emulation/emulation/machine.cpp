// Blocks and fibers; see machine.hpp.

#include "machine.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

#if ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if SWITCH_UCONTEXT
#include <ucontext.h>
#endif

namespace lv {

__thread Thread* current = nullptr;
__thread Dim3 current_block;
__thread Dim3 current_grid;
__thread Dim3 current_block_size;

namespace {

// The sanitizer keeps red zones around locals, so frames are larger.
//
// Threads do the same at the same depth of their stacks. Were these a power of two apart, all of
// them would want the same few places of the processor's caches and of its table of pages: stacks
// are an odd number of pages apart, and each leaves another number of lines free at its top.
constexpr size_t STACK_BYTES = (ADDRESS_SANITIZER ? 260 : 68) * 1024;
constexpr size_t CACHE_LINE = 64;
constexpr size_t MOST_FREE_BYTES = 4096;
constexpr u32 MAX_SITES = 64;

// Shared memory of one declaration.
struct Site {
    const void* key;
    void* memory;
};

}  // namespace

struct Machine {
    Thread threads[MAX_THREADS];
    Copies copies[MAX_THREADS];
    Warp warps[MAX_THREADS / LANES];
    u8* stacks;
    alignas(256) u8 shared_memory[SHARED_BYTES];
    size_t shared_used;
    size_t dynamic_bytes;
    Site sites[MAX_SITES];
    u32 n_sites;
    u32 n_threads;
    u32 n_left;
    u32 n_at_barrier;
    const Kernel* kernel;
    const void* args;
    void* scheduler;
    void* scheduler_fake_stack;
    const void* scheduler_stack;
    size_t scheduler_stack_size;
#if SWITCH_UCONTEXT
    ucontext_t scheduler_context;
    ucontext_t contexts[MAX_THREADS];
#endif
    bool backward;
    bool failed;
    char message[512];
};

namespace {

#if SWITCH_X86_64
void* fresh_context(u8* top, void (*entry)()) {
    // A function finds the stack 8 bytes off a multiple of 16.
    void** at = reinterpret_cast<void**>(top) - 2;
    at[0] = reinterpret_cast<void*>(entry);
    at[1] = nullptr;
    return at;
}
#elif SWITCH_AARCH64
__asm__(".text\n"
        ".globl lv_switch\n"
        ".hidden lv_switch\n"
        ".type lv_switch,%function\n"
        "lv_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n"
        ".size lv_switch, .-lv_switch\n");

void* fresh_context(u8* top, void (*entry)()) {
    void** at = reinterpret_cast<void**>(top) - 20;
    std::memset(at, 0, 20 * sizeof(void*));
    at[11] = reinterpret_cast<void*>(entry);
    return at;
}
#endif

u8* stack_of(Machine& machine, const Thread& thread) {
    return machine.stacks + (&thread - machine.threads) * STACK_BYTES;
}

// From the scheduler to a thread, until it waits or leaves.
void run(Machine& machine, Thread& thread) {
    current = &thread;
#if ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&machine.scheduler_fake_stack, stack_of(machine, thread),
                                   STACK_BYTES);
#endif
#if SWITCH_UCONTEXT
    swapcontext(&machine.scheduler_context, &machine.contexts[&thread - machine.threads]);
#else
    switch_stacks(&machine.scheduler, thread.context);
#endif
#if ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(machine.scheduler_fake_stack, nullptr, nullptr);
#endif
}

// Who runs when `thread` cannot: the next of its warp that is ready, round and round in the order
// of threads. Null if nobody is.
Thread* next_ready(Thread& thread) {
    const Machine& machine = *thread.machine;
    if (machine.failed) {
        return nullptr;
    }
    for (Thread* next = thread.next; next != &thread; next = next->next) {
        if (next->state == State::Ready) {
            return next;
        }
    }
    return nullptr;
}

// From the running thread to the next one, or to the scheduler.
void yield(Thread& thread, bool for_ever) {
    Machine& machine = *thread.machine;
    (void)for_ever;
    Thread* const next = next_ready(thread);
#if ADDRESS_SANITIZER
    void** fake_stack = for_ever ? nullptr : &thread.fake_stack;
    if (next != nullptr) {
        __sanitizer_start_switch_fiber(fake_stack, stack_of(machine, *next), STACK_BYTES);
    } else {
        __sanitizer_start_switch_fiber(fake_stack, machine.scheduler_stack,
                                       machine.scheduler_stack_size);
    }
#endif
    current = next;
#if SWITCH_UCONTEXT
    swapcontext(&machine.contexts[&thread - machine.threads],
                next != nullptr ? &machine.contexts[next - machine.threads]
                                : &machine.scheduler_context);
#else
    switch_stacks(&thread.context, next != nullptr ? next->context : machine.scheduler);
#endif
#if ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(thread.fake_stack, nullptr, nullptr);
#endif
}

// What every fiber runs.
void thread_main() {
    Thread& thread = *current;
    Machine& machine = *thread.machine;
#if ADDRESS_SANITIZER
    const void* stack = nullptr;
    size_t size = 0;
    __sanitizer_finish_switch_fiber(nullptr, &stack, &size);
    if (machine.scheduler_stack == nullptr) {
        // The first fiber of all comes from the scheduler, others may come from each other.
        machine.scheduler_stack = stack;
        machine.scheduler_stack_size = size;
    }
#endif
    machine.kernel->run(machine.args);
    thread.state = State::Left;
    machine.n_left++;
    yield(thread, true);
    std::abort();
}

// Bytes of a thread's stack that it does not use.
size_t free_at_top(u32 i) { return i * 9 * CACHE_LINE % MOST_FREE_BYTES; }

void reset(Machine& machine, Thread& thread, u32 i) {
    thread.machine = &machine;
    thread.warp = &machine.warps[i / LANES];
    thread.index = Dim3{i, 0, 0};
    thread.lane = i % LANES;
    thread.state = State::Ready;
    thread.n_meetings = 0;
    thread.copies = &machine.copies[i];
    thread.copies->n = 0;
    thread.copies->n_groups = 0;
    thread.fake_stack = nullptr;
    const u32 next = (thread.lane + (machine.backward ? LANES - 1 : 1)) % LANES;
    thread.next = &thread - thread.lane + next;
    u8* stack = stack_of(machine, thread);
#if SWITCH_UCONTEXT
    ucontext_t& context = machine.contexts[i];
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK_BYTES - free_at_top(i);
    context.uc_link = nullptr;
    makecontext(&context, thread_main, 0);
#else
    thread.context = fresh_context(stack + STACK_BYTES - free_at_top(i), thread_main);
#endif
}

// Runs each warp until all its threads wait at the barrier or have left.
void run_warps(Machine& machine) {
    const bool backward = machine.backward;
    const u32 n = machine.n_threads;
    const u32 n_warps = n / LANES;
    for (u32 i = 0; i < n_warps && !machine.failed; i++) {
        const u32 warp = backward ? n_warps - 1 - i : i;
        bool ran = true;
        while (ran && !machine.failed) {
            ran = false;
            for (u32 j = 0; j < LANES && !machine.failed; j++) {
                const u32 lane = backward ? LANES - 1 - j : j;
                Thread& thread = machine.threads[warp * LANES + lane];
                if (thread.state == State::Ready) {
                    ran = true;
                    run(machine, thread);
                }
            }
        }
    }
}

void report(Machine& machine, const char* format, va_list list) {
    const int n = std::snprintf(machine.message, sizeof(machine.message), "%s, block (%u, %u, %u): ",
                                machine.kernel->name, current_block.x, current_block.y,
                                current_block.z);
    std::vsnprintf(machine.message + n, sizeof(machine.message) - n, format, list);
    machine.failed = true;
}

__attribute__((format(printf, 2, 3))) void give_up(Machine& machine, const char* format, ...) {
    va_list list;
    va_start(list, format);
    report(machine, format, list);
    va_end(list);
}

// Some threads wait, but not all of them for the same.
void explain(Machine& machine) {
    const Thread* at_barrier = nullptr;
    for (u32 i = 0; i < machine.n_threads; i++) {
        const Thread& thread = machine.threads[i];
        if (thread.state == State::AtMeeting) {
            return give_up(machine,
                           "thread %u waits at line %d for lanes of its warp that do not come", i,
                           thread.line);
        }
        if (thread.state == State::AtBarrier) {
            if (at_barrier != nullptr && at_barrier->line != thread.line) {
                return give_up(machine, "barriers do not match: lines %d and %d", at_barrier->line,
                               thread.line);
            }
            at_barrier = &thread;
        }
    }
    give_up(machine, "no thread can go on");
}

bool barriers_match(const Machine& machine) {
    int line = 0;
    for (u32 i = 0; i < machine.n_threads; i++) {
        const Thread& thread = machine.threads[i];
        if (thread.state == State::AtBarrier) {
            if (line != 0 && thread.line != line) {
                return false;
            }
            line = thread.line;
        }
    }
    return true;
}

void run_block(Machine& machine) {
    const u32 n = machine.n_threads;
    machine.shared_used = (machine.dynamic_bytes + 255) / 256 * 256;
    machine.n_sites = 0;
    machine.n_left = 0;
    machine.n_at_barrier = 0;
    // Shared memory holds nothing: not-a-number, or a very large index.
    std::memset(machine.shared_memory, 0xff, machine.dynamic_bytes);
#if ADDRESS_SANITIZER
    __asan_poison_memory_region(machine.shared_memory + machine.dynamic_bytes,
                                SHARED_BYTES - machine.dynamic_bytes);
#endif
    for (u32 i = 0; i < n / LANES; i++) {
        machine.warps[i].n_meetings = 0;
        machine.warps[i].n_arrived = 0;
    }
    for (u32 i = 0; i < n; i++) {
        reset(machine, machine.threads[i], i);
    }
    while (!machine.failed) {
        run_warps(machine);
        if (machine.failed || machine.n_left == n) {
            break;
        }
        if (machine.n_at_barrier + machine.n_left != n || !barriers_match(machine)) {
            explain(machine);
            break;
        }
        machine.n_at_barrier = 0;
        for (u32 i = 0; i < n; i++) {
            if (machine.threads[i].state == State::AtBarrier) {
                machine.threads[i].state = State::Ready;
            }
        }
    }
#if ADDRESS_SANITIZER
    __asan_unpoison_memory_region(machine.shared_memory, SHARED_BYTES);
#endif
}

}  // namespace

void fail(const char* format, ...) {
    Machine& machine = *current->machine;
    va_list list;
    va_start(list, format);
    report(machine, format, list);
    va_end(list);
    yield(*current, true);
    std::abort();
}

void barrier(int line) {
    Thread& thread = *current;
    thread.state = State::AtBarrier;
    thread.line = line;
    thread.machine->n_at_barrier++;
    yield(thread, false);
}

void* arrive(Warp& warp, int line) {
    Thread& thread = *current;
    if (warp.n_arrived == 0) {
        warp.line = line;
    } else if (warp.line != line) {
        fail("lanes of a warp meet at different lines, %d and %d", warp.line, line);
    }
    warp.n_arrived++;
    if (warp.n_arrived < LANES) {
        thread.state = State::AtMeeting;
        thread.line = line;
#if SWITCH_UCONTEXT || ADDRESS_SANITIZER
        yield(thread, false);
        return nullptr;
#else
        current = next_ready(thread);
        return current != nullptr ? current->context : thread.machine->scheduler;
#endif
    }
    warp.n_arrived = 0;
    warp.n_meetings++;
    Thread* first = &thread - thread.lane;
    for (u32 i = 0; i < LANES; i++) {
        if (first[i].state == State::AtMeeting) {
            first[i].state = State::Ready;
        }
    }
    return nullptr;
}

void* shared(const void* site, size_t size, size_t align) {
    Machine& machine = *current->machine;
    for (u32 i = 0; i < machine.n_sites; i++) {
        if (machine.sites[i].key == site) {
            return machine.sites[i].memory;
        }
    }
    const size_t step = align < 16 ? 16 : align;
    // A GPU aligns an array as its type asks for; no array is here aligned better than that.
    const size_t at = (machine.shared_used + step - 1) / step * step + align % 16;
    if (machine.n_sites == MAX_SITES || at + size > SHARED_BYTES) {
        fail("too much shared memory: %zu bytes more than %zu", size, machine.shared_used);
    }
    u8* memory = machine.shared_memory + at;
#if ADDRESS_SANITIZER
    __asan_unpoison_memory_region(memory, size);
#endif
    std::memset(memory, 0xff, size);
    // A gap that only the sanitizer sees.
    machine.shared_used = at + size + (ADDRESS_SANITIZER ? 64 : 0);
    machine.sites[machine.n_sites++] = Site{site, memory};
    return memory;
}

void* dynamic_shared() { return current->machine->shared_memory; }

}  // namespace lv

using lv::Kernel;
using lv::Machine;

extern "C" {

// A machine for one thread of the system at a time; null without memory.
Machine* lv_machine_new() {
    void* memory = nullptr;
    if (posix_memalign(&memory, alignof(Machine), sizeof(Machine)) != 0) {
        return nullptr;
    }
    Machine* machine = new (memory) Machine();
    const size_t size = lv::STACK_BYTES * lv::MAX_THREADS;
    void* stacks = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        std::free(machine);
        return nullptr;
    }
    machine->stacks = static_cast<u8*>(stacks);
    // Below each stack a page that ends the program, rather than another thread's locals.
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    for (u32 i = 0; i < lv::MAX_THREADS; i++) {
        // Where pages are larger than most, a stack may begin in the middle of one.
        const size_t at = (i * lv::STACK_BYTES + page - 1) / page * page;
        mprotect(machine->stacks + at, page, PROT_NONE);
    }
    return machine;
}

void lv_machine_free(Machine* machine) {
    munmap(machine->stacks, lv::STACK_BYTES * lv::MAX_THREADS);
    std::free(machine);
}

// Runs blocks of the grid until `next_block`, which several machines share, is past the last.
// Returns null, or what went wrong.
const char* lv_run(Machine* machine, const Kernel* kernel, const u32* grid, u32 dynamic_bytes,
                   const void* args, u64* next_block, bool backward) {
    const u64 n_blocks = static_cast<u64>(grid[0]) * grid[1] * grid[2];
#if ADDRESS_SANITIZER
    if (machine->failed) {
        // Threads that never came back have left their marks.
        __asan_unpoison_memory_region(machine->stacks, lv::STACK_BYTES * lv::MAX_THREADS);
    }
#endif
    machine->kernel = kernel;
    machine->args = args;
    machine->n_threads = kernel->threads;
    machine->dynamic_bytes = dynamic_bytes;
    machine->backward = backward;
    machine->failed = false;
    machine->scheduler_stack = nullptr;
    lv::current_grid = lv::Dim3{grid[0], grid[1], grid[2]};
    lv::current_block_size = lv::Dim3{kernel->threads, 1, 1};
    if (dynamic_bytes > lv::SHARED_BYTES) {
        return "more shared memory than there is";
    }
    for (;;) {
        u64 block = __atomic_fetch_add(next_block, 1, __ATOMIC_RELAXED);
        if (block >= n_blocks) {
            break;
        }
        block = backward ? n_blocks - 1 - block : block;
        lv::current_block.x = static_cast<u32>(block % grid[0]);
        lv::current_block.y = static_cast<u32>(block / grid[0] % grid[1]);
        lv::current_block.z = static_cast<u32>(block / grid[0] / grid[1]);
        lv::run_block(*machine);
        if (machine->failed) {
            __atomic_store_n(next_block, n_blocks, __ATOMIC_RELAXED);
            break;
        }
    }
    lv::current = nullptr;
    return machine->failed ? machine->message : nullptr;
}

}  // extern "C"
