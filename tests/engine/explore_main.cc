// The explorer's long run (tests/explore.sh): sampled schedules of random programs, every schedule with a few
// deviations of a small one, and the replay of what failed.
//
//   explore_main sample FIRST_SEED DISTINCT     until so many schedules were distinct by their trace hash
//   explore_main every BUDGET [AT_MOST]         every schedule with at most BUDGET deviations of the small program
//   explore_main wait BUDGET [AT_MOST]          the same, where one of its pushers also waits
//   explore_main replay SEED                    one sampled schedule, step by step
//   explore_main replay every:DECISIONS         one of the others, as its failure told them; or wait:DECISIONS
//
// A failure is told at once, with what replays it. The last line is machine-readable:
// `schedules N mismatches M hangs H`; the exit status is 0 if M and H are.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <unordered_set>

#include "explore_run.h"
#include "explore_search.h"
#include "explore_small.h"

namespace sluice::testing {
namespace {

struct Count {
  std::uint64_t schedules = 0, mismatches = 0, hangs = 0;
  int finish() const {
    std::printf("schedules %" PRIu64 " mismatches %" PRIu64 " hangs %" PRIu64 "\n", schedules, mismatches, hangs);
    return mismatches || hangs ? 1 : 0;
  }
};

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  /// True once every ten seconds.
  bool strikes() {
    if (seconds() < next_) return false;
    next_ = seconds() + 10;
    return true;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double next_ = 10;
};

constexpr std::uint64_t kEnough = 10;  // failures, after which a search ends

/// What is being run, for the handlers below.
std::atomic<std::uint64_t> running{0};
const char* running_what = "seed";

/// A schedule takes a millisecond. One that takes a minute blocks where the explorer cannot see it: in a lock that is
/// not the policy's.
void watch(std::uint64_t what) {
  running.store(what, std::memory_order_relaxed);
  if (what % 256 == 0) ::alarm(60);
}

/// The process ends here, so what a handler must not call is called for once.
void broke_off(int signal) {
  std::printf("%s in %s %" PRIu64 "\n", signal == SIGALRM ? "blocked outside of the explorer" : "crashed", running_what,
              running.load(std::memory_order_relaxed));
  if (current_search) std::printf("  decisions %s\n", current_search->decisions().c_str());
  std::printf("schedules 0 mismatches 1 hangs 0\n");
  std::fflush(stdout);
  std::_Exit(3);
}

[[maybe_unused]] void handle_signals() {
  static char stack[1 << 16];  // a fiber's may have overflowed
  stack_t other{};
  other.ss_sp = stack;
  other.ss_size = sizeof(stack);
  ::sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_handler = broke_off;
  action.sa_flags = SA_ONSTACK | SA_RESETHAND;
  for (int signal : {SIGALRM, SIGSEGV, SIGBUS, SIGABRT, SIGFPE}) ::sigaction(signal, &action, nullptr);
  ::alarm(60);
}

int sample(std::uint64_t seed, std::uint64_t wanted) {
  Count count;
  Clock clock;
  std::unordered_set<std::uint64_t> hashes;
  std::uint64_t runs = 0, points = 0;
  for (; hashes.size() < wanted && count.mismatches + count.hangs < kEnough; ++seed, ++runs) {
    watch(seed);
    const ProgramResult result = run_program(seed);
    hashes.insert(result.hash);
    points += result.points;
    if (result.hang) ++count.hangs;
    if (!result.hang && !result.mismatch.empty()) ++count.mismatches;
    if (!result.good()) {
      std::printf("seed %" PRIu64 ": %s\n", seed, result.hang ? "a hang" : result.mismatch.c_str());
      std::printf("  again, step by step: tests/explore.sh --replay %" PRIu64 "\n", seed);
    }
    if (clock.strikes()) {
      std::printf("sampled %" PRIu64 ", distinct %zu, %.0f s\n", runs + 1, hashes.size(), clock.seconds());
      std::fflush(stdout);
    }
  }
  std::printf("sampled %" PRIu64 " schedules of %" PRIu64 " programs up to seed %" PRIu64
              ", distinct %zu, %.0f steps each, %.0f s\n",
              runs, runs / kSchedulesOfOne, seed - 1, hashes.size(),
              static_cast<double>(points) / static_cast<double>(runs ? runs : 1), clock.seconds());
  count.schedules = hashes.size();
  return count.finish();
}

int every(bool waits, int budget, std::uint64_t at_most) {
  const char* const name = waits ? "wait" : "every";
  Count count;
  Clock clock;
  std::uint64_t runs = 0;
  running_what = "run";
  SmallResult last;
  const Search search = every_schedule(
      budget,
      [&] {
        watch(runs);
        last = run_small(waits);
        ++runs;
        if (clock.strikes()) {
          std::printf("%s: %" PRIu64 " schedules so far, %.0f s\n", name, runs, clock.seconds());
          std::fflush(stdout);
        }
        return last.good();
      },
      at_most);
  if (search.bad) {
    ++(last.hang ? count.hangs : count.mismatches);
    std::printf("decisions %s: %s\n", search.first_bad.c_str(), last.hang ? "a hang" : last.mismatch.c_str());
    std::printf("  again, step by step: tests/explore.sh --replay %s:%s\n", name, search.first_bad.c_str());
  }
  if (search.unsteady) {
    ++count.mismatches;
    std::printf("the same decisions gave another run: something does not come from the explorer\n");
  }
  std::printf("%s: all schedules with at most %d deviations%s: %" PRIu64 " runs, %" PRIu64 " distinct, %.0f s\n", name,
              budget, search.bad || search.schedules >= at_most ? ", cut short" : "", search.schedules, search.distinct,
              clock.seconds());
  count.schedules = search.distinct;
  return count.finish();
}

int replay_one(const char* what) {
  detail::Explorer::get().print_to(stdout);
  std::string verdict = "good";
  const bool every = std::strncmp(what, "every:", 6) == 0, waits = std::strncmp(what, "wait:", 5) == 0;
  if (every || waits) {
    SmallResult result;
    replay(std::strchr(what, ':') + 1, [&] {
      result = run_small(waits);
      return result.good();
    });
    verdict = result.hang ? "a hang" : result.mismatch;
  } else {
    const std::uint64_t seed = std::strtoull(what, nullptr, 10);
    std::printf("%s", describe(ProgramDrawing(seed / kSchedulesOfOne).program()).c_str());
    const ProgramResult result = run_program(seed, stdout);
    verdict = result.hang ? "a hang" : result.mismatch;
  }
  std::printf("%s: %s\n", what, verdict.empty() ? "good" : verdict.c_str());
  return verdict.empty() ? 0 : 1;
}

}  // namespace
}  // namespace sluice::testing

int main(int count, char** words) {
  using namespace sluice::testing;
  // An engine is made for each schedule: its memory stays with the process.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
#ifndef SLUICE_SANITIZED
  handle_signals();
#endif
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const auto number = [&](int i, std::uint64_t fallback) {
    return i < count ? std::strtoull(words[i], nullptr, 10) : fallback;
  };
  int result = 2;
  if (count >= 2 && std::strcmp(words[1], "sample") == 0) result = sample(number(2, 1), number(3, 10000));
  for (const bool waits : {false, true})
    if (count >= 3 && std::strcmp(words[1], waits ? "wait" : "every") == 0)
      result = every(waits, static_cast<int>(number(2, 1)), number(3, ~std::uint64_t{0}));
  if (count >= 3 && std::strcmp(words[1], "replay") == 0) result = replay_one(words[2]);
  if (result == 2)
    std::fprintf(stderr,
                 "explore_main sample SEED DISTINCT | every|wait BUDGET [AT_MOST] | "
                 "replay SEED|every:DECISIONS|wait:DECISIONS\n");
  std::fflush(stdout);
  // What a hang left behind must not be destroyed.
  std::_Exit(result);
}
