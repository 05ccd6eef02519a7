// The machine that stands for a multiprocessor: it runs the blocks of a grid, each thread of a
// block a fiber.
//
// Fibers are left where a thread must wait: at a barrier, or where the lanes of a warp meet. In
// between a thread runs alone, so a kernel's plain code costs what it costs in C++. Threads run
// forward or backward: who reads what another thread of the block writes, without a barrier in
// between, gets it right in one order at most.
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

namespace lv {

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

struct Warp {
    // Meetings that are over.
    u64 n_meetings;
    u32 n_arrived;
    int line;
    // Two sides: a lane may already hand in for the next meeting while another still reads.
    alignas(16) u8 slots[2][LANES][SLOT_BYTES];
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
};

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

// Says that this lane is at `line`, and waits until all lanes of the warp are.
void arrive(Warp& warp, int line);

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

// All lanes of the warp hand something in and see what the others did.
template <typename T> Slots<T> meet(const T& mine, int line) {
    static_assert(sizeof(T) <= SLOT_BYTES);
    Thread& thread = *current;
    auto& side = thread.warp->slots[thread.n_meetings % 2];
    std::memcpy(side[thread.lane], &mine, sizeof(T));
    thread.n_meetings++;
    arrive(*thread.warp, line);
    return Slots<T>{side};
}

}  // namespace lv
