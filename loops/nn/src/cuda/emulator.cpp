// Runs the kernels on a processor: every GPU thread is a coroutine, a block's threads take turns
// from one barrier to the next, blocks follow each other. Their order can be turned around, so
// that a result that depends on it shows.
#include "emulator.h"
#include <map>
#include <string>
#include <ucontext.h>
#include <vector>

Dim threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr size_t STACK = 128 << 10;

struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    enum { READY, WAITING, DONE } state;
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

void enter() {
    body(arguments);
    threads[current].state = Thread::DONE;
    swapcontext(&threads[current].context, &scheduler);
}

void run_to_barrier(uint32_t index) {
    current = index;
    threadIdx = {index, 0, 0};
    swapcontext(&scheduler, &threads[index].context);
}

// False when some threads wait at a barrier that others never reach.
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
    for (uint32_t done = 0; done < count;) {
        for (uint32_t i = 0; i < count; i++) {
            run_to_barrier(reverse ? count - 1 - i : i);
        }
        done = 0;
        for (uint32_t i = 0; i < count; i++) done += threads[i].state == Thread::DONE;
        if (done != 0 && done != count) return false;
    }
    return true;
}

} // namespace

void emulator_sync() {
    threads[current].state = Thread::WAITING;
    swapcontext(&threads[current].context, &scheduler);
}

Registered::Registered(const char *name, void (*run)(const void *)) { kernels()[name] = run; }

// 0 when the kernel ran, 1 when there is none of that name, 2 when its threads disagree about a
// barrier.
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
