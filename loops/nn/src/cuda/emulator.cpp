// Runs the kernels on a processor: every GPU thread is a coroutine, a block's threads take turns
// from one barrier to the next, blocks follow each other. Their order can be turned around, so
// that a result that depends on it shows.
#include "common.cuh"
#include <map>
#include <string>
#include <ucontext.h>
#include <vector>

Dim threadIdx, blockIdx, blockDim, gridDim;
alignas(128) unsigned char emulator_room[ROOM_MAX];

namespace {

constexpr size_t STACK = 128 << 10;

struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    // At a barrier of the block, or until something is done.
    enum { READY, BARRIER, WAITING, DONE } state;
};

std::map<std::string, void (*)(const void *)> &kernels() {
    static std::map<std::string, void (*)(const void *)> all;
    return all;
}

std::vector<Thread> threads;
ucontext_t scheduler;
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
std::vector<Warp> warps;

void enter() {
    body(arguments);
    threads[current].state = Thread::DONE;
    swapcontext(&threads[current].context, &scheduler);
}

void run_some(uint32_t index) {
    current = index;
    threadIdx = {index, 0, 0};
    swapcontext(&scheduler, &threads[index].context);
}

// False when some threads wait for what never comes: a barrier that others do not reach, or copies.
bool run_block(uint32_t count, bool reverse) {
    for (uint32_t i = 0; i < count; i++) {
        Thread &thread = threads[i];
        thread.stack.resize(STACK);
        thread.state = Thread::READY;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = STACK;
        thread.context.uc_link = &scheduler;
        makecontext(&thread.context, enter, 0);
    }
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
    swapcontext(&threads[current].context, &scheduler);
}

void emulator_wait() {
    threads[current].state = Thread::WAITING;
    swapcontext(&threads[current].context, &scheduler);
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
        if (!run_block(block, reverse != 0)) return 2;
    }
    return 0;
}

#include "kernels.cu"
