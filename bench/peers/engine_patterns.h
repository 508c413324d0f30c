// What all sides of bench/engine.sh share: the patterns, the bodies, the clock and the form of the output. It knows no
// engine, and each program differs only in its `Side`:
//
//   Side(int threads)                   worker threads; OpenMP and oneTBB count the calling thread in
//   static bool has(const Pattern&)     what it can do
//   void session(f)                     calls f() where pushes are allowed
//   void none(body)  read(v, body)  write(v, body)  update(v, body)  mixed(i, pick, body)
//                                       push one op; `mixed` is op i, with two reads and one update
//   void finish()  finish(v)            wait for all, and for one variable
//   void prepare(const Pattern&, body)  optional: before the clock starts
//   void build(const Pattern&)  replay(int times)
//                                       for replay_*: make the graph; run it that many times and wait for the last
//
// A program prints `pattern threads ns share` for each pattern asked of it: ns per op from the first push to the end of
// the last op. It is the median of 3 to 15 repetitions (quick: 1 to 15), as many as fit into a time, after an untimed
// one.
//
// work_*: ns per op beyond the body, in the time of all cores that may work: wall * cores / ops - body, where cores is
// the lesser of the threads and the machine's cores. The share is that part of their time which bodies had:
// ops * body / (wall * cores). Bodies are spins. What one takes is measured right before and after each repetition, on
// as many threads as there are cores to work, with nothing else to do: a shared machine's speed changes by a sixth from
// one moment to the next. (Peers whose idle workers spin lengthen it, in their own favour.) For patterns without a body
// the share is `-`.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

namespace patterns {

using Clock = std::chrono::steady_clock;
using Pick = std::array<std::uint8_t, 3>;

enum class Shape : std::uint8_t { none, chains, fan, random };
enum class Kind : std::uint8_t { push, latency, replay, pushers };

struct Pattern {
  const char* name;
  Kind kind;
  Shape shape;
  int variables;  ///< a power of two
  int ops;        ///< of one repetition; for replay, of the graph
  int body_ns = 0;
};

constexpr std::array kPatterns = {
    Pattern{"chains", Kind::push, Shape::chains, 1024, 65'536},
    Pattern{"chain", Kind::push, Shape::chains, 1, 65'536},
    Pattern{"fan", Kind::push, Shape::fan, 1, 65'536},
    Pattern{"random", Kind::push, Shape::random, 64, 65'536},
    Pattern{"none", Kind::push, Shape::none, 1, 65'536},
    Pattern{"latency", Kind::latency, Shape::chains, 1, 2'048},
    Pattern{"replay_chain", Kind::replay, Shape::chains, 1, 16'384},
    Pattern{"replay_random", Kind::replay, Shape::random, 64, 16'384},
    Pattern{"work_chains", Kind::push, Shape::chains, 64, 65'536, 500},
    Pattern{"work_random", Kind::push, Shape::random, 64, 32'768, 1'000},
    Pattern{"work_random4", Kind::push, Shape::random, 64, 8'192, 4'000},
    Pattern{"pushers2_chain", Kind::pushers, Shape::chains, 1, 65'536},
    Pattern{"pushers2_random", Kind::pushers, Shape::random, 64, 65'536},
    Pattern{"pushers2_none", Kind::pushers, Shape::none, 1, 65'536},
};

/// Two reads and an update of three of 64 variables, the same for all sides.
inline const std::vector<Pick>& picks() {
  static const std::vector<Pick> all = [] {
    std::mt19937 random(1);
    std::vector<Pick> made(65'536);
    for (Pick& p : made) do {
        for (auto& x : p) x = static_cast<std::uint8_t>(random() % 64);
      } while (p[0] == p[1] || p[0] == p[2] || p[1] == p[2]);
    return made;
  }();
  return all;
}

struct Empty {
  void operator()() const {}
};

struct Spin {
  std::uint32_t turns;
  void operator()() const {
    for (std::uint32_t left = turns; left != 0; --left) asm volatile("" : "+r"(left));
  }
  /// Nanoseconds of one turn on a core that nothing else uses: the least of some milliseconds' worth of runs.
  static double turn_ns() {
    constexpr std::uint32_t kTurns = 1 << 16;
    double least = 1e18;
    for (const auto start = Clock::now(); Clock::now() - start < std::chrono::milliseconds(20);) {
      const auto begin = Clock::now();
      Spin{kTurns}();
      least = std::min(least, std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
    }
    return least / kTurns;
  }
  /// Nanoseconds of a body at present, where one follows the other and there is nothing else: the mean of some
  /// milliseconds on each of so many threads. A little more than its turns: it has a beginning and an end.
  double body_ns(int threads) const {
    const int bodies = 1 + static_cast<int>(10'000'000 / turns);
    std::vector<double> times(static_cast<std::size_t>(threads));
    std::vector<std::thread> all;
    std::atomic<int> begun{0};
    for (double& time : times)
      all.emplace_back([&] {
        begun.fetch_add(1);
        while (begun.load(std::memory_order_acquire) < threads) {
        }
        const auto begin = Clock::now();
        for (int i = 0; i < bodies; ++i) (*this)();
        time = std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / bodies;
      });
    for (std::thread& t : all) t.join();
    return std::accumulate(times.begin(), times.end(), 0.0) / threads;
  }
};

/// Nanoseconds for a cache line to another core and back; the least of some rounds. Two threads on one core would take
/// a time slice for each turn, so that a round has an end in time too.
inline double ping_pong() {
  double least = 1e18;
  for (int round = 0; round < 5; ++round) {
    constexpr int kTurns = 10'000, kEnd = -1;
    std::atomic<int> ball{0};
    std::thread other([&] {
      for (int at = ball; at != kEnd; at = ball.load(std::memory_order_acquire))
        if (at % 2 == 1) ball.store(at + 1, std::memory_order_release);
    });
    const auto begin = Clock::now();
    std::chrono::duration<double, std::nano> time{};
    int turns = 0;
    while (turns < kTurns && time < std::chrono::milliseconds(20)) {
      for (int i = 0; i < 16; ++i, ++turns) {
        ball.store(2 * turns + 1, std::memory_order_release);
        while (ball.load(std::memory_order_acquire) != 2 * turns + 2) {
        }
      }
      time = Clock::now() - begin;
    }
    ball = kEnd;
    other.join();
    least = std::min(least, time.count() / turns);
  }
  return least;
}

/// For systems that want edges: the ops that each op of a pattern has to follow. A write follows the reads since the
/// last write, or that write where there were none.
inline std::vector<std::vector<int>> predecessors(const Pattern& pattern) {
  std::vector<std::vector<int>> edges(static_cast<std::size_t>(pattern.ops));
  std::vector<int> writer(static_cast<std::size_t>(pattern.variables), -1);
  std::vector<std::vector<int>> readers(writer.size());
  for (int i = 0; i < pattern.ops; ++i) {
    auto& before = edges[static_cast<std::size_t>(i)];
    const auto read = [&](std::size_t v) {
      if (writer[v] >= 0) before.push_back(writer[v]);
      readers[v].push_back(i);
    };
    const auto update = [&](std::size_t v) {
      if (readers[v].empty() && writer[v] >= 0) before.push_back(writer[v]);
      before.insert(before.end(), readers[v].begin(), readers[v].end());
      writer[v] = i;
      readers[v].clear();
    };
    if (pattern.shape == Shape::random) {
      const Pick& p = picks()[static_cast<std::size_t>(i)];
      read(p[0]);
      read(p[1]);
      update(p[2]);
    } else {
      update(static_cast<std::size_t>(i & (pattern.variables - 1)));
    }
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
  }
  return edges;
}

template <class Side>
concept Pushes = requires(Side& side) {
  side.finish();
};
template <class Side>
concept Replays = requires(Side& side) {
  side.replay(1);
};

template <class Side, class Body>
void push_all(Side& side, const Pattern& pattern, int first, int last, const Body& body) {
  switch (pattern.shape) {
    case Shape::none:
      for (int i = first; i < last; ++i) side.none(body);
      break;
    case Shape::chains:
      for (int i = first; i < last; ++i) side.update(i & (pattern.variables - 1), body);
      break;
    case Shape::fan:  // one writer, sixteen readers
      for (int i = first; i < last; ++i)
        if (i % 17 == 0) {
          side.write(0, body);
        } else {
          side.read(0, body);
        }
      break;
    case Shape::random: {
      const Pick* all = picks().data();
      for (int i = first; i < last; ++i) side.mixed(i, all[i], body);
      break;
    }
  }
}

/// Two threads push half of the pattern each, on the same variables.
template <class Side>
Clock::duration two_pushers(Side& side, const Pattern& pattern, int ops) {
  std::atomic<int> ready{0};
  const auto half = [&](int first, int last) {
    ready.fetch_add(1);
    while (ready.load(std::memory_order_acquire) < 2) {
    }
    push_all(side, pattern, first, last, Empty{});
  };
  std::thread other([&] { half(0, ops / 2); });
  while (ready.load(std::memory_order_acquire) < 1) {
  }
  const auto begin = Clock::now();
  half(ops / 2, ops);
  other.join();
  side.finish();
  return Clock::now() - begin;
}

/// What one repetition took, in ns per op, of all cores that work; and what a body took at that time.
struct Turn {
  double spent, body = 0;
  double beyond() const { return spent - body; }
};

/// The repetition that has the median of what was beyond the bodies.
template <class Once>
Turn median(bool quick, const Once& once) {
  const auto limit = quick ? std::chrono::milliseconds(10) : std::chrono::milliseconds(60);
  const std::size_t least = quick ? 1 : 3;
  once();  // warms up
  std::vector<Turn> turns;
  for (const auto begin = Clock::now(); turns.size() < least || (turns.size() < 15 && Clock::now() - begin < limit);)
    turns.push_back(once());
  const auto middle = turns.begin() + static_cast<std::ptrdiff_t>(turns.size() / 2);
  std::nth_element(turns.begin(), middle, turns.end(), [](auto& a, auto& b) { return a.beyond() < b.beyond(); });
  return *middle;
}

/// One repetition.
template <class Side, class Body>
Clock::duration push_and_finish(Side& side, const Pattern& pattern, int ops, const Body& body) {
  if (pattern.kind == Kind::pushers) return two_pushers(side, pattern, ops);
  const auto begin = Clock::now();
  if (pattern.kind == Kind::latency) {
    for (int i = 0; i < ops; ++i) {
      side.write(0, body);
      side.finish(0);
    }
  } else {
    push_all(side, pattern, 0, ops, body);
    side.finish();
  }
  return Clock::now() - begin;
}

/// The middle one of a pattern's repetitions.
template <class Side, class Body>
Turn measure(const Pattern& pattern, int threads, bool quick, const Body& body) {
  const int ops = quick && pattern.kind != Kind::replay ? pattern.ops / 4 : pattern.ops;
  const auto per_op = [](Clock::duration time, int count) {
    return std::chrono::duration<double, std::nano>(time).count() / count;
  };
  Turn turn{0};
  Side side(threads);
  if constexpr (requires { side.prepare(pattern, body); }) side.prepare(pattern, body);
  side.session([&] {
    if (pattern.kind != Kind::replay) {
      if constexpr (Pushes<Side>)
        turn = median(quick, [&] {
          if constexpr (std::is_same_v<Body, Spin>) {
            const int cores = std::min(threads, static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
            const double before = body.body_ns(cores);
            const double spent = cores * per_op(push_and_finish(side, pattern, ops, body), ops);
            return Turn{spent, (before + body.body_ns(cores)) / 2};
          } else {
            return Turn{per_op(push_and_finish(side, pattern, ops, body), ops)};
          }
        });
    } else if constexpr (Replays<Side>) {
      const int replays = quick ? 4 : 16;
      side.build(pattern);
      turn = median(quick, [&] {
        const auto begin = Clock::now();
        side.replay(replays);
        return Turn{per_op(Clock::now() - begin, ops * replays)};
      });
    }
  });
  return turn;
}

template <class Side>
void measure_and_print(const Pattern& pattern, int threads, bool quick) {
  if (pattern.body_ns == 0) {
    std::printf("%s %d %.2f -\n", pattern.name, threads, measure<Side>(pattern, threads, quick, Empty{}).spent);
  } else {
    const Spin body{static_cast<std::uint32_t>(pattern.body_ns / Spin::turn_ns())};
    const Turn turn = measure<Side>(pattern, threads, quick, body);
    std::printf("%s %d %.2f %.3f\n", pattern.name, threads, turn.beyond(), turn.body / turn.spent);
  }
  std::fflush(stdout);
}

/// The `main` of each program.
template <class Side>
int run(int argc, char** argv) {
  const bool all = argc == 2 && std::strcmp(argv[1], "--list-all") == 0;
  if (all || (argc == 2 && std::strcmp(argv[1], "--list") == 0)) {
    for (const Pattern& pattern : kPatterns)
      if (all || Side::has(pattern)) std::printf("%s\n", pattern.name);
    return 0;
  }
  if (argc == 2 && std::strcmp(argv[1], "--ping-pong") == 0) {
    std::printf("%.0f\n", ping_pong());
    return 0;
  }
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  const int at = quick ? 2 : 1;
  const int threads = argc > at + 1 ? std::atoi(argv[at]) : 0;
  if (threads < 1) {
    std::fprintf(stderr, "usage: %s [--quick] THREADS PATTERN...\n       %s --list | --list-all | --ping-pong\n",
                 argv[0], argv[0]);
    return 2;
  }
  for (int i = at + 1; i < argc; ++i) {
    const auto* const pattern = std::find_if(kPatterns.begin(), kPatterns.end(),
                                             [&](const Pattern& p) { return std::strcmp(p.name, argv[i]) == 0; });
    if (pattern == kPatterns.end() || !Side::has(*pattern)) {
      std::fprintf(stderr, "error: no pattern %s here; --list names them\n", argv[i]);
      return 2;
    }
    measure_and_print<Side>(*pattern, threads, quick);
  }
  return 0;
}

}  // namespace patterns
