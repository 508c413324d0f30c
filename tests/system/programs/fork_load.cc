// Forks in the midst of threads that use the library, for fork_load_test.cc and tests/deep.sh forks:
//   fork_load load FORKS      this process forks, while threads of it use arrays, and make and end engines
//   fork_load first PROCESSES each of so many fresh processes forks three times, while threads of it use the library
//   for
//                             the first time
// Each child makes an engine of its own, uses arrays on it, and ends. Prints what did not come out so. A child that
// takes longer than 20 s prints where its threads are, a line for each, and ends.
#include <cxxabi.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sluice/resources/providers/sim.h"
#include "sluice/sluice.h"

using namespace sluice;

namespace {

constexpr unsigned kSeconds = 20;
constexpr int kHung = 99;  ///< a child's status

/// The sum of some operators on arrays of the default engine, with their gradient: 128.
double use_arrays(int n) {
  const NDArray x = full({n, 64}, 0.5f).with_grad();
  const NDArray w = full({64, 8}, 0.25f);
  return sum(grad(sum(relu(matmul(x, w) + 1)), {x})[0]).item<float>() / static_cast<float>(n);
}

/// What a child does. 0: all is well.
int use_everything() {
  try {
    Engine own({.threads = 2, .providers = {sim_devices(1)}});
    set_default_engine(&own);
    int result = 0;
    const Variable v = own.variable();
    long ran = 0;
    for (int i = 0; i < 50; ++i) own.push([&] { ++ran; }, {update(v)});
    own.wait(v);
    if (ran != 50) result = 3;
    for (int n = 1; n < 40; n *= 3)
      if (use_arrays(n) != 128) result = 4;
    own.wait_all();
    if (!own.stop()) result = 5;
    set_default_engine(nullptr);
    return result;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "in the child: %s\n", error.what());
    return 2;
  }
}

/// A line with the functions that this thread is in, the innermost first. Not for a handler of signals, but for a
/// process that would only be killed otherwise.
void print_stack() {
  void* frames[24];
  const int count = ::backtrace(frames, 24);
  char** const symbols = ::backtrace_symbols(frames, count);
  std::string line = "thread " + std::to_string(::syscall(SYS_gettid)) + ":";
  for (int i = 2; i < count && symbols; ++i) {  // "program(mangled+0x12) [0x1234]"
    const std::string symbol = symbols[i];
    const std::size_t begin = symbol.find('(') + 1, end = symbol.find('+', begin);
    std::string name = end != std::string::npos && end > begin ? symbol.substr(begin, end - begin) : symbol;
    int status = 0;
    if (char* const plain = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status)) name = plain;
    line += " < " + name.substr(0, std::min(name.find('('), std::size_t{60}));
  }
  std::fprintf(stderr, "%s\n", line.c_str());
}

void print_stacks_and_end(int) {
  ::signal(SIGUSR2, [](int) { print_stack(); });
  print_stack();
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    const int id = std::atoi(thread.path().filename().c_str());
    if (id == ::syscall(SYS_gettid)) continue;
    ::syscall(SYS_tgkill, ::getpid(), id, SIGUSR2);
    ::usleep(100'000);  // one after the other
  }
  ::_exit(kHung);
}

/// True if a child of this process ended well. `what` says which one.
bool fork_one(const std::function<int()>& body, unsigned seconds, const std::string& what) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGALRM, print_stacks_and_end);
    ::alarm(seconds);
    ::_exit(body());
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) {
    std::printf("%s: no child\n", what.c_str());
    return false;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kHung)
    std::printf("%s: hung\n", what.c_str());
  else if (WIFEXITED(status))
    std::printf("%s: ended with %d\n", what.c_str(), WEXITSTATUS(status));
  else
    std::printf("%s: was killed by signal %d\n", what.c_str(), WTERMSIG(status));
  std::fflush(stdout);
  return false;
}

/// Threads that call f again and again.
class Threads {
 public:
  void add(std::function<void()> f) {
    threads_.emplace_back([this, f = std::move(f)] {
      do {
        f();
        ++rounds_;
      } while (!enough_.load());
    });
  }
  void end() {
    enough_.store(true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  long rounds() const { return rounds_.load(); }

 private:
  std::atomic<bool> enough_{false};
  std::atomic<long> rounds_{0};
  std::vector<std::thread> threads_;
};

int load(int forks) {
  Engine shared({.threads = 2, .providers = {sim_devices(1)}});
  set_default_engine(&shared);
  NDArray of_device = full({1000}, 1).to(sim(0));  // which each child lets go of
  of_device.wait();
  Threads threads;
  for (int i = 0; i < 2; ++i) threads.add([] { use_arrays(3); });
  threads.add([] {  // blocks of the pool, and nothing else
    for (int i = 0; i < 1000; ++i) {
      MemoryPool& pool = memory_pool(cpu(0));
      pool.deallocate(pool.allocate(1000), 1000);
    }
  });
  threads.add([&] {
    DevicePool& pool = device_pool(shared, sim(0));
    for (int i = 0; i < 1000; ++i) {
      if (void* const block = pool.allocate(DevicePool::device_memory, 1000, nullptr)) {
        pool.deallocate(DevicePool::device_memory, block, 1000);
      }
    }
  });
  threads.add([] {
    Engine one({.threads = 1});
    const Variable v = one.variable();
    one.push([] {}, {update(v)});
    one.wait(v);
  });
  const auto child = [&] {
    of_device = {};
    return use_everything();
  };
  int wrong = 0;
  for (int i = 0; i < forks && wrong < 3; ++i)
    if (!fork_one(child, kSeconds, "fork " + std::to_string(i))) ++wrong;
  threads.end();
  if (threads.rounds() < forks / 20) std::printf("the load stood still\n"), ++wrong;
  of_device = {};
  shared.wait_all();
  set_default_engine(nullptr);
  return wrong;
}

/// In a fresh process.
int first_uses(int number) {
  std::mt19937 random(static_cast<unsigned>(number));
  Threads threads;
  std::atomic<int> begun{0};
  const auto together = [&begun](auto f) {
    return [&begun, f] {
      if (begun.fetch_add(1) < 3)
        while (begun.load() < 3) std::this_thread::yield();
      f();
    };
  };
  threads.add(together([] { use_arrays(2); }));
  threads.add(together([] { Engine({.threads = 1}).push([] {}, {}).wait(); }));
  while (begun.load() < 2) std::this_thread::yield();
  begun.fetch_add(1);
  int wrong = 0;
  for (int i = 0; i < 3; ++i) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % (i == 0 ? 1500 : 6000));
    while (std::chrono::steady_clock::now() < until) {
    }
    if (!fork_one(use_everything, kSeconds, "process " + std::to_string(number) + ", fork " + std::to_string(i)))
      ++wrong;
  }
  threads.end();
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string_view mode = argv[1];
  const int count = std::atoi(argv[2]);
  int wrong = 0;
  if (mode == "load") {
    wrong = load(count);
  } else {
    for (int i = 0; i < count && wrong < 3; ++i)
      if (!fork_one([i] { return first_uses(i); }, 4 * kSeconds, "process " + std::to_string(i))) ++wrong;
  }
  std::printf("%d %s: %s\n", count, mode == "load" ? "forks" : "processes", wrong == 0 ? "ok" : "failed");
  return wrong == 0 ? 0 : 1;
}
