// Runs the kernels on a processor: every GPU thread is a coroutine, a block's threads take turns
// from one barrier to the next, blocks follow each other. Their order can be turned around, so
// that a result that depends on it shows.
#include "common.cuh"
#include <csetjmp>
#include <map>
#include <string>
#include <ucontext.h>
#include <vector>

Dim threadIdx, blockIdx, blockDim, gridDim;
alignas(128) unsigned char emulator_room[ROOM_MAX];

namespace {

constexpr size_t STACK = 128 << 10;

// One for all blocks: it runs the kernel's body again and again. Where it stopped is kept without the
// mask of signals, which a call to the system would have to read.
struct Thread {
    jmp_buf stopped;
    std::vector<char> stack;
    // At a barrier of the block, or until something is done.
    enum { READY, BARRIER, WAITING, DONE } state;
};

std::map<std::string, void (*)(const void *)> &kernels() {
    static auto &all = *new std::map<std::string, void (*)(const void *)>;
    return all;
}

// What a kernel may still use while the process ends in another thread is never given back.
std::vector<Thread> &threads = *new std::vector<Thread>;
jmp_buf scheduler;
uint32_t current;
void (*body)(const void *);
const void *arguments;
// Whether something was done that others may wait for.
bool did;
// Threads of a warp that have come to its barrier, and how often all had.
struct Warp {
    uint32_t come;
    uint32_t times;
};
std::vector<Warp> &warps = *new std::vector<Warp>;

// Stops here and goes on there.
__attribute__((noinline)) void go_on(jmp_buf &here, jmp_buf &there) {
    if (_setjmp(here) == 0) _longjmp(there, 1);
}

void stop() { go_on(threads[current].stopped, scheduler); }

void enter() {
    for (;;) {
        body(arguments);
        threads[current].state = Thread::DONE;
        stop();
    }
}

__attribute__((noinline)) void begin(Thread &thread) {
    ucontext_t context;
    thread.stack.resize(STACK);
    getcontext(&context);
    context.uc_stack.ss_sp = thread.stack.data();
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
    if (_setjmp(scheduler) == 0) setcontext(&context);
}

void run_some(uint32_t index) {
    current = index;
    threadIdx = {index, 0, 0};
    Thread &thread = threads[index];
    if (thread.stack.empty())
        begin(thread);
    else
        go_on(scheduler, thread.stopped);
}

// False when some threads wait for what never comes: a barrier that others do not reach, or copies.
bool run_block(uint32_t count, bool reverse) {
    for (uint32_t i = 0; i < count; i++) threads[i].state = Thread::READY;
    warps.assign((count + 31) / 32, Warp{0, 0});
    for (uint32_t idle = 0;;) {
        did = false;
        uint32_t done = 0, waiting = 0;
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t index = reverse ? count - 1 - i : i;
            if (threads[index].state == Thread::READY || threads[index].state == Thread::WAITING) run_some(index);
        }
        for (uint32_t i = 0; i < count; i++) {
            done += threads[i].state == Thread::DONE;
            waiting += threads[i].state == Thread::WAITING;
        }
        if (done == count) return true;
        // Who went on without doing such a thing does it soon.
        idle = did ? 0 : idle + 1;
        if (waiting > 0 && idle > 8) return false;
        if (waiting > 0) continue;
        if (done > 0) return false;
        for (uint32_t i = 0; i < count; i++) threads[i].state = Thread::READY;
    }
}

} // namespace

void emulator_sync() {
    threads[current].state = Thread::BARRIER;
    stop();
}

void emulator_wait() {
    threads[current].state = Thread::WAITING;
    stop();
}

void emulator_did() { did = true; }

void emulator_warp_sync() {
    const uint32_t index = current / 32, times = warps[index].times;
    if (++warps[index].come == 32) {
        warps[index] = Warp{0, times + 1};
        emulator_did();
    }
    while (warps[index].times == times) emulator_wait();
}

Registered::Registered(const char *name, void (*run)(const void *)) { kernels()[name] = run; }

// 0 when the kernel ran, 1 when there is none of that name, 2 when its threads wait for
// what never comes.
extern "C" int hone_emulate(const char *name, const uint32_t *grid, uint32_t block, const void *args, int reverse) {
    auto found = kernels().find(name);
    if (found == kernels().end()) return 1;
    body = found->second;
    arguments = args;
    if (threads.size() < block) threads.resize(block);
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block, 1, 1};
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t at = reverse ? blocks - 1 - i : i;
        blockIdx = {(uint32_t)(at % grid[0]), (uint32_t)(at / grid[0] % grid[1]), (uint32_t)(at / grid[0] / grid[1])};
        if (run_block(block, reverse != 0)) continue;
        // They will never come to the end.
        threads.clear();
        return 2;
    }
    return 0;
}

#include "kernels.cu"
