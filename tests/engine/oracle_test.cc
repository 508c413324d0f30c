// At least 1,000 random programs, each against the serial model of the order in which its pushes took effect.
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "oracle.h"
#include "sluice/engine/stream.h"

namespace sluice::oracle {
namespace {

/// Threads that answer Completions some time after the body returned.
class Answerers {
 public:
  Answerers() {
    for (auto& t : threads_) t = std::thread([this] { run(); });
  }
  ~Answerers() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    for (auto& t : threads_) t.join();
  }
  void add(std::function<void()> job) {
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closed_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool closed_ = false;
  std::array<std::thread, 2> threads_;
};

void spin(int n) {
  for (std::atomic<int> i{0}; i.load(std::memory_order_relaxed) < n;) i.fetch_add(1, std::memory_order_relaxed);
}

/// Runs one program on an engine and checks it against the model.
class Run {
 public:
  Run(std::uint64_t seed, Flavour flavour) : program_(Generator(seed, flavour).make()), engine_(program_.options) {
    engine_.on_unobserved_error([](const ErrorRoot&) {});
    for (int v = 0; v < kVariables; ++v) {
      values_[static_cast<std::size_t>(v)] = mix(7, static_cast<std::uint64_t>(v));
      variables_.push_back(engine_.variable("v", !program_.without_value.contains(v)));
    }
  }

  void go() {
    {
      Answerers answerers;
      answerers_ = &answerers;
      std::vector<std::thread> pushers;
      for (auto& specs : program_.threads)
        pushers.emplace_back([this, &specs] {
          for (auto& s : specs) {
            push(*s);
            spin(s->spin);
            if (s->cancel) s->cancelled = s->ticket.cancel();
            if (s->outside_wait < 0) continue;
            const std::string threw = name_thrown([&] { engine_.wait(variable(s->outside_wait)); });
            std::lock_guard lock(mutex_);
            outside_waits_[s->outside_wait].insert(threw);
          }
        });
      for (auto& t : pushers) t.join();
      // wait_all waits for what was pushed before it; ops push on.
      do {
        name_thrown([&] { engine_.wait_all(); });
      } while (engine_.in_flight() > 0);
      try {
        engine_.wait_all();
      } catch (const AggregateError& e) {
        for (const ErrorRef& root : e.roots()) aggregate_.insert(root->operation);
        EXPECT_EQ(aggregate_.size(), e.roots().size()) << "a root twice";
      }
    }
    for (Spec* s : program_.all)
      if (s->pushed) s->outcome = name_thrown([&] { s->ticket.wait(); });
    check();
  }

 private:
  Variable& variable(int v) { return variables_[static_cast<std::size_t>(v)]; }
  static std::string name_thrown(const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& e) {
      return e.root().operation;
    }
    return "";
  }

  void push(Spec& s) {
    s.pushed = true;
    if (s.recovery) {
      s.ticket = engine_.recover(variable(s.accesses[0].first));
      return;
    }
    std::vector<Access> accesses;
    for (const auto& [v, mode] : s.accesses) accesses.push_back({variable(v).get(), mode});
    const PushOptions options{
        .on = s.on, .priority = s.priority, .name = s.name.c_str(), .bytes = s.bytes, .on_poison = s.on_poison};
    if (s.answer == Answer::none) {
      s.ticket = engine_.push([this, &s](Context& c) { body(s, c); }, accesses, options);
    } else {
      s.ticket = engine_.push([this, &s](Context& c, Completion done) { late_body(s, c, std::move(done)); }, accesses,
                              options);
    }
  }

  void inside(Spec& s) {
    spin(s.spin);
    for (auto& n : s.nested) push(*n);
    if (s.wait_nested)
      for (auto& n : s.nested) {
        name_thrown([&] { n->ticket.wait(); });
        EXPECT_TRUE(n->ticket.done());
      }
    if (s.wait_variable >= 0) s.waits.push_back(name_thrown([&] { engine_.wait(variable(s.wait_variable)); }));
  }

  /// What the op sees of its variables' errors, and what it does with them when it is healed.
  std::vector<int> roots_seen(const Spec& s, Context& c) {
    std::vector<int> roots(kVariables, kNoRoot);
    for (const auto& [v, mode] : Model::joined(s)) {
      if (mode != AccessMode::read && mode != AccessMode::update) continue;
      if (const ErrorRef e = c.error(variable(v)))
        roots[static_cast<std::size_t>(v)] = std::stoi(e->operation.substr(2));
      if (mode == AccessMode::update && s.heals) c.heal(variable(v));
    }
    return roots;
  }

  void compute(const Spec& s, const std::vector<int>& roots) {
    std::array<std::uint64_t*, kVariables> values, orders;
    for (std::size_t v = 0; v < kVariables; ++v) values[v] = &values_[v], orders[v] = &orders_[v];
    Model::compute(s, values.data(), orders.data(), roots.data());
  }

  void body(Spec& s, Context& c) {
    inside(s);
    const std::vector<int> roots = roots_seen(s, c);
    if (c.stream()) {
      c.stream()->launch([this, &s, roots] {
        spin(s.spin);
        compute(s, roots);
      });
      return;
    }
    compute(s, roots);
    if (s.ending == Ending::throws_intact) c.wrote_nothing();
    if (s.ending != Ending::normal) throw std::runtime_error("thrown by " + s.name);
  }

  void late_body(Spec& s, Context& c, Completion done) {
    inside(s);
    const std::vector<int> roots = roots_seen(s, c);
    if (s.ending == Ending::throws_intact) c.wrote_nothing();
    auto held = std::make_shared<Completion>(std::move(done));
    answerers_->add([this, &s, roots, held] {
      spin(s.spin);
      compute(s, roots);
      Completion mine = std::move(*held);
      // Where the body throws either may be first, and it is the first that counts: so both say the same.
      const bool fails = s.answer == Answer::fails || s.ending != Ending::normal;
      if (s.answer == Answer::done && !fails) mine.done();
      if (s.answer != Answer::dropped && fails) mine.fail(std::make_exception_ptr(std::runtime_error("late")));
      EXPECT_EQ(static_cast<bool>(mine), s.answer == Answer::dropped);
    });
    if (s.ending != Ending::normal) throw std::runtime_error("thrown by " + s.name);
  }

  void check() {
    std::map<std::uint64_t, Spec*> by_id;
    for (Spec* s : program_.all)
      if (s->pushed) by_id[s->ticket.id()] = s;
    std::map<const void*, int> index;
    for (int v = 0; v < kVariables; ++v) index[variable(v).get()] = v;
    Model model(program_);
    std::map<int, std::multiset<std::string>> outside;
    std::map<int, std::vector<std::string>> inside;
    std::size_t ran = 0;
    const auto name_of = [&](int root) { return root == kNoRoot ? std::string() : "op" + std::to_string(root); };
    for (const LoggedPush& p : engine_.take_order()) {
      if (p.id == 0) {
        const int v = index.at(p.variable);
        if (p.by == 0) {
          outside[v].insert(name_of(model.at(v).root));
        } else {
          inside[by_id.at(p.by)->id].push_back(name_of(model.at(v).root));
        }
        continue;
      }
      ASSERT_TRUE(by_id.contains(p.id)) << p.name;
      model.run(*by_id.at(p.id));
      ++ran;
    }
    EXPECT_EQ(ran, by_id.size());
    for (int v = 0; v < kVariables; ++v) {
      const Model::State& x = model.at(v);
      const auto i = static_cast<std::size_t>(v);
      if (x.poison != Model::State::torn) {
        EXPECT_EQ(values_[i], x.value) << "value of " << v;
      }
      EXPECT_EQ(orders_[i], x.order) << "order of " << v;
      const ErrorRef error = engine_.error(variable(v));
      EXPECT_EQ(error ? error->operation : "", name_of(x.root)) << "root of " << v;
    }
    for (const auto& [op, root] : model.outcomes)
      EXPECT_EQ(program_.all[static_cast<std::size_t>(op)]->outcome, name_of(root)) << "ticket of op " << op;
    for (const Spec* s : program_.all)
      if (!s->waits.empty()) {
        EXPECT_EQ(s->waits, inside[s->id]) << "waits inside op " << s->id;
      }
    EXPECT_EQ(outside_waits_, outside);
    std::set<std::string> live;
    for (const auto& x : model.states)
      if (x.root != kNoRoot) live.insert(name_of(x.root));
    for (int root : model.wrote_nothing) live.insert(name_of(root));
    EXPECT_EQ(aggregate_, live);
    // Intact or torn: what a recovery clears.
    for (auto& v : variables_) engine_.recover(v);
    for (int v = 0; v < kVariables; ++v)
      EXPECT_EQ(name_thrown([&] { engine_.wait(variable(v)); }) != "", model.at(v).poison == Model::State::torn)
          << "poison of " << v;
    EXPECT_EQ(engine_.in_flight(), 0u);
  }

  Program program_;
  std::array<std::uint64_t, kVariables> values_{}, orders_{};
  std::mutex mutex_;
  std::map<int, std::multiset<std::string>> outside_waits_;
  std::set<std::string> aggregate_;
  Answerers* answerers_ = nullptr;
  Engine engine_;
  std::vector<Variable> variables_;
};

void run_seeds(std::uint64_t first, int count, Flavour flavour) {
  for (int i = 0; i < count; ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Run(seed, flavour).go();
    if (::testing::Test::HasFailure()) {
      std::printf("fails with seed %llu\n", static_cast<unsigned long long>(seed));
      return;
    }
  }
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first) + static_cast<unsigned long long>(count) - 1);
}

class Oracle : public ::testing::TestWithParam<int> {};
TEST_P(Oracle, ThreadedProgramsEqualTheSerialModel) {
  run_seeds(static_cast<std::uint64_t>(GetParam()) * 100, 100, {});
}
INSTANTIATE_TEST_SUITE_P(Hundreds, Oracle, ::testing::Range(0, 10));

class OracleVariants : public ::testing::TestWithParam<int> {};
TEST_P(OracleVariants, SerialModeEqualsTheModel) {
  run_seeds(10'000 + static_cast<std::uint64_t>(GetParam()) * 50, 50, {.mode = EngineMode::serial});
}
TEST_P(OracleVariants, SimulatedStreamsEqualTheModel) {
  run_seeds(20'000 + static_cast<std::uint64_t>(GetParam()) * 50, 50, {.errors = false, .streams = true});
}
TEST_P(OracleVariants, SerialModeWithStreamsEqualsTheModel) {
  run_seeds(30'000 + static_cast<std::uint64_t>(GetParam()) * 10, 10,
            {.mode = EngineMode::serial, .errors = false, .streams = true});
}
INSTANTIATE_TEST_SUITE_P(Fifties, OracleVariants, ::testing::Range(0, 2));

}  // namespace
}  // namespace sluice::oracle
