// Threads that hand work to each other through a mutex and condition variables, with thread-local state,
// a growing heap and a timer signal running all the while.
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>
#include <sys/time.h>

namespace {

std::mutex lock;
std::condition_variable not_empty, not_full;
std::deque<uint64_t> queue;
std::atomic<uint64_t> ticks{0};
thread_local uint64_t mine = 0;

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t grind(uint64_t seed) {
    std::vector<uint64_t> work(4096);
    for (auto &x : work) x = seed = mix(seed);
    for (int round = 0; round < 40; ++round)
        for (size_t i = 1; i < work.size(); ++i) work[i] = mix(work[i] ^ work[i - 1]);
    return work.back();
}

}  // namespace

int main(int argc, char **argv) {
    const uint64_t items = argc > 1 ? strtoull(argv[1], nullptr, 10) : 20000;
    struct sigaction action = {};
    action.sa_handler = [](int) { ++ticks; };
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, nullptr);
    const itimerval every = {{0, 5000}, {0, 5000}};
    setitimer(ITIMER_REAL, &every, nullptr);

    std::atomic<uint64_t> sum{0};
    std::vector<std::thread> workers;
    for (int n = 0; n < 3; ++n)
        workers.emplace_back([&] {
            for (;;) {
                std::unique_lock<std::mutex> held(lock);
                not_empty.wait(held, [] { return !queue.empty(); });
                const uint64_t item = queue.front();
                if (item == UINT64_MAX) break;
                queue.pop_front();
                held.unlock();
                not_full.notify_one();
                mine += grind(item);
            }
            sum += mine;
        });
    for (uint64_t item = 0; item < items; ++item) {
        std::unique_lock<std::mutex> held(lock);
        not_full.wait(held, [] { return queue.size() < 16; });
        queue.push_back(item);
        held.unlock();
        not_empty.notify_one();
        if (item % 500 == 0) {
            printf("item %llu\n", static_cast<unsigned long long>(item));
            fflush(stdout);
        }
    }
    {
        std::unique_lock<std::mutex> held(lock);
        queue.push_back(UINT64_MAX);
    }
    not_empty.notify_all();
    for (auto &worker : workers) worker.join();
    printf("digest %016llx\n", static_cast<unsigned long long>(sum.load()));
    return ticks == 0;
}
