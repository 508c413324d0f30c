// A process that has no memory, or gets no threads, for a while, as its arguments say:
//   first N         the main thread's N-th allocation, of all up to its first wait, fails
//   stays N         that and those after it fail, up to the first push, counted from the engine on
//   threads N LAST  the N-th to the LAST start of a thread fail
//   loops N         no thread starts while N ops, which the waiting thread runs, have loops; one of them may fail
//   pushers SEED    several threads are refused half of what they ask for while they push
// Then there is all again, and everything must work. The last line has a count.
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/version.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/engine/loops.h"

// Last: clang's headers declare again what this defines, which they may before it alone.
#include "no_memory.h"

namespace {
using namespace sluice;
using no_memory::refusals;

[[noreturn]] void wrong(const char* what) {
  refusals = {};
  std::printf("wrong: %s\n", what);
  std::fflush(stdout);
  std::_Exit(1);
}

/// While it lives the calling thread is refused what it says.
class NoMemory {
 public:
  explicit NoMemory(const no_memory::Refusals& of) { refusals = of; }
  ~NoMemory() { refusals = {}; }
};

/// False where there was no memory for it. Nothing else may come of that.
template <class F>
bool attempt(F&& step) {
  try {
    step();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const std::exception& error) {
    wrong(error.what());
  }
}

/// Everything works: pushes from ops, waits, loops inside ops, errors, and another engine.
void use(Engine& engine) {
  for (int round = 0; round < 5; ++round) {
    std::array<Variable, 4> v;
    for (auto& x : v) x = engine.variable();
    std::array<long, 4> values{}, expected{};
    for (std::size_t i = 0; i < 40; ++i) {
      const std::size_t a = i % 4, b = i * 7 % 3;
      const auto step = [a, b, i](std::array<long, 4>& x) { x[a] = x[a] * 3 + x[b] + static_cast<long>(i); };
      engine.push([&values, step] { step(values); }, {update(v[a]), read(v[b])});
      step(expected);
    }
    std::array<std::atomic<int>, 64> seen{};
    engine.push(
        [&] { parallel_for(64, 1, [&](std::int64_t at, std::int64_t) { ++seen[static_cast<std::size_t>(at)]; }); },
        {update(v[1])});
    engine.wait_all();
    if (values != expected) wrong("values");
    for (const auto& n : seen)
      if (n != 1) wrong("a loop");
  }
}

const EngineOptions kOptions{.mode_given = true, .threads = 2};

void first(long at, bool stays) {
  std::optional<Engine> engine;
  if (stays) engine.emplace(kOptions);
  Variable v;
  int ran = 0, pushed = 0;
  long seen = 0;
  {
    const NoMemory none({.at = at, .stays = stays});
    for (int tries = 0; !engine && tries < 2; ++tries) attempt([&] { engine.emplace(kOptions); });
    for (int tries = 0; engine && !v && tries < 2; ++tries) attempt([&] { v = engine->variable(); });
    for (int tries = 0; v && tries < 2; ++tries) pushed += attempt([&] { engine->push([&] { ++ran; }, {update(v)}); });
    if (pushed && !stays) attempt([&] { engine->wait(v); });
    seen = refusals.seen;
  }
  if (!stays && (!engine || !v || pushed == 0)) wrong("a second try");
  if (!v) v = engine->variable();
  engine->wait(v);
  if (ran != pushed) wrong("the first push");
  use(*engine);
  Engine other({.mode_given = true, .threads = 3, .logical_cpus = 2});
  use(other);
  engine.reset();
  std::printf("allocations: %ld\n", seen);
}

void threads(long from, long to) {
  no_memory::first_refused = from;
  no_memory::last_refused = to;
  Engine engine(kOptions);
  for (int i = 0; i < 3; ++i) use(engine);
  std::printf("starts: %ld\n", no_memory::starts.load());
}

void loops(long count) {
  no_memory::first_refused = 1;
  no_memory::last_refused = 1'000'000;
  Engine engine(kOptions);
  engine.on_unobserved_error([](const ErrorRoot&) {});
  int failed = 0;
  for (long i = 0; i < count; ++i) {
    engine.push([&] { parallel_for(64, 1, [](std::int64_t, std::int64_t) {}); }, {}, {.name = "loop"});
    try {
      engine.wait_all();
    } catch (const Error&) {
      engine.clear_errors();
      ++failed;
    }
  }
  if (failed > 1) wrong("more loops failed");
  no_memory::last_refused = 0;
  Engine other({.mode_given = true, .threads = 3, .logical_cpus = 2});  // oneTBB has threads now
  for (int i = 0; i < 3; ++i) use(other), use(engine);
  std::printf("loops that failed: %d\n", failed);
}

constexpr std::size_t kVariables = 6;

/// Pushed by one thread, in order: it adds to one variable what it finds in another.
struct Op {
  std::size_t to = 0, from = 0;
  int id = 0;
  void operator()(std::array<std::uint64_t, kVariables>& x) const {
    x[to] = x[to] * 5 + x[from] + static_cast<std::uint64_t>(id);
    x[from] ^= x[to] >> 3;
  }
};

/// Several pushers. Each variable keeps which ops took it, in order: with the order of each pusher's own pushes that
/// must be one serial order, and to run the ops in it must give the same values.
void pushers(std::uint64_t seed) {
  constexpr int kPushers = 4, kOps = 300;
  Engine engine({.mode_given = true, .threads = 2});
  std::array<Variable, kVariables> v;
  for (auto& x : v) x = engine.variable();
  std::array<std::uint64_t, kVariables> values{};
  std::array<std::vector<int>, kVariables> order;
  for (auto& taken : order) taken.reserve(std::size_t{kPushers} * kOps);
  std::vector<Op> ops;
  for (int id = 0; id < kPushers * kOps; ++id) {
    const std::uint64_t draw = (static_cast<std::uint64_t>(id) + 1) * (seed * 2 + 0x9e3779b97f4a7c15u) >> 20;
    ops.push_back({draw % kVariables, draw / kVariables % kVariables, id});
  }
  std::vector<std::thread> threads;
  std::atomic<long> failed{0};
  for (int p = 0; p < kPushers; ++p)
    threads.emplace_back([&, p] {
      const NoMemory half({.random = (seed * kPushers + static_cast<std::uint64_t>(p) + 1) * 0x9e3779b97f4a7c15u});
      for (int i = 0; i < kOps; ++i) {
        const Op& op = ops[static_cast<std::size_t>(p * kOps + i)];
        const auto body = [&, large = std::array<char, 300>()] {  // which has no place in the op's record
          static_cast<void>(large);
          op(values);
          order[op.to].push_back(op.id);
          if (op.from != op.to) order[op.from].push_back(op.id);
        };
        while (!attempt([&] { engine.push(body, {update(v[op.to]), update(v[op.from])}); })) failed.fetch_add(1);
        if (i % 64 == 0)
          while (!attempt([&] { engine.wait(v[op.to]); })) failed.fetch_add(1);
      }
    });
  for (auto& t : threads) t.join();
  engine.wait_all();

  std::array<std::uint64_t, kVariables> expected{};
  std::array<std::size_t, kVariables> at{};
  std::array<int, kPushers> done{};
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t p = 0; p < kPushers; ++p) {
      if (done[p] == kOps) continue;
      const Op& op = ops[p * kOps + static_cast<std::size_t>(done[p])];
      const auto is_next = [&](std::size_t x) { return at[x] < order[x].size() && order[x][at[x]] == op.id; };
      if (!is_next(op.to) || !is_next(op.from)) continue;
      op(expected);
      ++at[op.to];
      if (op.from != op.to) ++at[op.from];
      ++done[p];
      moved = true;
    }
  }
  for (const int n : done)
    if (n != kOps) wrong("no serial order");
  if (values != expected) wrong("values");
  use(engine);
  std::printf("pushes and waits that failed: %ld\n", failed.load());
}

}  // namespace

int main(int argc, char** argv) {
#if TBB_INTERFACE_VERSION >= 12110
  // The one thing in which oneTBB waits for ever where it finds no memory for it: what its arenas have in common
  // (docs/decisions/0010-no-memory.md, "What is left").
  tbb::task_arena held(1, 1);
  held.initialize();
#endif
  const std::string_view how = argc > 2 ? argv[1] : "";
  const long n = argc > 2 ? std::atol(argv[2]) : 0;
  if (how == "first" || how == "stays") {
    first(n, how == "stays");
  } else if (how == "threads" && argc > 3) {
    threads(n, std::atol(argv[3]));
  } else if (how == "loops") {
    loops(n);
  } else if (how == "pushers") {
    pushers(static_cast<std::uint64_t>(n));
  } else {
    return 2;
  }
  return 0;
}
