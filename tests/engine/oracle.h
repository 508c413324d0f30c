// Random programs for the engine, and a plain serial model that says what they must come to.
//
// A program is a tree of op specifications, drawn from a seed: what each op reads and writes, whether it throws,
// pushes, waits, completes late or is cancelled. The engine runs it from four threads; the model runs the order that
// the engine logged, one op after another; both must agree on every value, poison, root and ticket.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/resources/providers/sim.h"

namespace sluice::oracle {

inline constexpr int kVariables = 64;
inline constexpr int kLow =
    40;  ///< ops on variables from here up never wait and touch nothing below: waits for them end
inline constexpr int kPushers = 4;
inline constexpr int kNoRoot = -1;

struct Flavour {
  EngineMode mode = EngineMode::threaded;
  bool errors = true;    ///< ops that throw, are cancelled, fail late
  bool streams = false;  ///< simulated devices in the mix (without errors: those are late there, and torn)
};

enum class Ending : std::uint8_t { normal, throws, throws_intact };
enum class Answer : std::uint8_t { none, done, fails, dropped };

struct Spec {
  int id = 0;
  std::vector<std::pair<int, AccessMode>> accesses;
  bool recovery = false;  ///< of accesses[0]
  bool cancel = false;
  Ending ending = Ending::normal;
  Answer answer = Answer::none;
  OnPoison on_poison = OnPoison::skip;
  bool heals = false;
  Place on;
  int priority = kDefaultPriority;
  std::size_t bytes = 0;
  int spin = 0;
  std::vector<std::unique_ptr<Spec>> nested;
  int wait_variable = -1;  ///< inside the body: wait for it
  bool wait_nested = false;
  int outside_wait = -1;  ///< by the pusher, after the push
  std::string name;

  // What happened in the engine.
  Ticket ticket;
  bool pushed = false, cancelled = false;
  std::vector<std::string> waits;  ///< what each wait inside threw: the root's name, or ""
  std::string outcome;             ///< of the ticket
};

struct Program {
  std::vector<std::vector<std::unique_ptr<Spec>>> threads{kPushers};
  std::vector<Spec*> all;
  std::set<int> without_value;
  EngineOptions options;
  std::vector<bool> recover_at_end;
};

inline std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
  h *= 0xbf58476d1ce4e5b9u;
  return h ^ (h >> 29);
}

class Generator {
 public:
  Generator(std::uint64_t seed, Flavour flavour) : random_(seed), flavour_(flavour) {}

  Program make() {
    Program p;
    p.options = {.mode = flavour_.mode,
                 .mode_given = true,
                 .threads = static_cast<int>(1 + below(4)),
                 .logical_cpus = 2,
                 .log_order = true};
    if (flavour_.streams) p.options.providers = {sim_devices(2)};
    if (chance(30)) p.options.max_ops = chance(50) ? 40 : 64;
    if (chance(30)) p.options.max_bytes = 2000;
    for (int i = 0; i < 6; ++i) p.without_value.insert(static_cast<int>(below(kVariables)));
    const int ops = 10 + static_cast<int>(below(20));
    for (auto& thread : p.threads)
      for (int i = 0; i < ops; ++i) thread.push_back(spec(p, 0));
    return p;
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }

  std::unique_ptr<Spec> spec(Program& p, int depth, bool high_only = false) {
    auto s = std::make_unique<Spec>();
    s->id = static_cast<int>(p.all.size());
    p.all.push_back(s.get());
    const bool high = high_only || chance(35);
    const auto variable = [&] { return static_cast<int>(high ? kLow + below(kVariables - kLow) : below(kLow)); };
    if (flavour_.errors && chance(8)) {
      s->recovery = true;
      s->name = "recover";
      s->accesses = {{variable(), AccessMode::update}};
      return s;
    }
    s->name = "op" + std::to_string(s->id);
    const int n = chance(10) ? 5 + static_cast<int>(below(8)) : static_cast<int>(below(4)) + (chance(90) ? 1 : 0);
    for (int i = 0; i < n; ++i) {
      constexpr AccessMode modes[] = {AccessMode::read,  AccessMode::read,   AccessMode::read,
                                      AccessMode::write, AccessMode::update, AccessMode::order};
      s->accesses.push_back({variable(), modes[below(flavour_.errors || chance(50) ? 6 : 5)]});
    }
    if (!s->accesses.empty() && chance(15))
      s->accesses.push_back({s->accesses[0].first, chance(50) ? AccessMode::read : AccessMode::write});
    s->on = Place(cpu(static_cast<int>(below(2))));
    if (chance(10)) s->on = io();
    if (chance(10)) s->on = Place(cpu(static_cast<int>(below(2))), LaneKind::copy_in);
    if (flavour_.streams && chance(50))
      s->on = Place(sim(static_cast<int>(below(2))), chance(70) ? LaneKind::compute : LaneKind::copy_out);
    s->priority = static_cast<int>(below(8));
    s->spin = chance(50) ? 0 : static_cast<int>(below(2000));
    if (depth == 0 && chance(30)) s->bytes = below(200);
    if (flavour_.errors) {
      if (chance(8)) s->ending = chance(50) ? Ending::throws : Ending::throws_intact;
      if (chance(20)) s->on_poison = OnPoison::run, s->heals = chance(50);
      if (depth == 0 && chance(6)) s->cancel = true;
    }
    if (chance(12)) {
      s->answer = Answer::done;
      if (flavour_.errors && chance(30)) s->answer = chance(50) ? Answer::fails : Answer::dropped;
    }
    if (s->on.device.kind == DeviceKind::sim) s->answer = Answer::none;
    if (depth < 2 && !high && s->on.device.kind == DeviceKind::cpu && chance(20)) {
      const int count = 1 + static_cast<int>(below(3));
      s->wait_nested = chance(40);
      for (int i = 0; i < count; ++i) s->nested.push_back(spec(p, depth + 1, s->wait_nested));
    }
    if (!high && s->on.device.kind == DeviceKind::cpu && chance(15))
      s->wait_variable = kLow + static_cast<int>(below(kVariables - kLow));
    if (depth == 0 && chance(5)) s->outside_wait = static_cast<int>(below(kVariables));
    return s;
  }

  std::mt19937_64 random_;
  Flavour flavour_;
};

/// The serial model: runs specifications one by one.
class Model {
 public:
  struct State {
    std::uint64_t value = 0, order = 0;
    enum : std::uint8_t { none, intact, torn } poison = none;
    int root = kNoRoot;
    bool has_value = true;
  };

  explicit Model(const Program& p) {
    for (int v = 0; v < kVariables; ++v) {
      states[static_cast<std::size_t>(v)].value = mix(7, static_cast<std::uint64_t>(v));
      states[static_cast<std::size_t>(v)].has_value = !p.without_value.contains(v);
    }
  }

  /// An op's accesses with each variable once, in the order of first mention.
  static std::vector<std::pair<int, AccessMode>> joined(const Spec& s) {
    std::vector<std::pair<int, AccessMode>> all;
    for (const auto& [v, mode] : s.accesses) {
      bool known = false;
      for (auto& [w, m] : all)
        if (w == v) m = m == mode ? m : AccessMode::update, known = true;
      if (!known) all.push_back({v, mode});
    }
    return all;
  }

  void run(const Spec& s) {
    const auto accesses = joined(s);
    if (s.recovery) {
      State& x = at(accesses[0].first);
      if (x.poison == State::intact) x.poison = State::none, x.root = kNoRoot;
      return;
    }
    int error = kNoRoot;
    bool ran = true;
    if (s.cancelled) {
      error = s.id, ran = false;
    } else if (s.on_poison == OnPoison::skip) {
      for (const auto& [v, mode] : accesses)
        if ((mode == AccessMode::read || mode == AccessMode::update) && at(v).poison != State::none && error == kNoRoot)
          error = at(v).root, ran = false;
    }
    if (ran) {
      std::vector<std::uint64_t*> values(kVariables), orders(kVariables);
      std::vector<int> roots(kVariables, kNoRoot);
      for (int v = 0; v < kVariables; ++v)
        values[static_cast<std::size_t>(v)] = &at(v).value, orders[static_cast<std::size_t>(v)] = &at(v).order,
        roots[static_cast<std::size_t>(v)] = at(v).root;
      compute(s, values.data(), orders.data(), roots.data());
      if (s.ending != Ending::normal || s.answer == Answer::fails || s.answer == Answer::dropped) error = s.id;
    }
    bool wrote = false;
    for (const auto& [v, mode] : accesses) {
      State& x = at(v);
      if (mode != AccessMode::update && mode != AccessMode::write) continue;
      wrote = true;
      if (error != kNoRoot) {
        const bool whole = !ran || s.ending == Ending::throws_intact;
        x.poison = !whole || x.poison == State::torn || !x.has_value ? State::torn : State::intact;
        x.root = error;
        continue;
      }
      if (mode == AccessMode::write || (s.on_poison == OnPoison::run && s.heals))
        x.poison = State::none, x.root = kNoRoot;
      if (x.poison == State::none) x.has_value = true;
    }
    if (error != kNoRoot && ran && !wrote) wrote_nothing.insert(error);
    outcomes[s.id] = error;
  }

  /// What a body does to the values it is given: the same code for the engine's and the model's.
  static void compute(const Spec& s, std::uint64_t* const* values, std::uint64_t* const* orders, const int* roots) {
    const auto accesses = joined(s);
    std::uint64_t h = mix(1, static_cast<std::uint64_t>(s.id));
    for (const auto& [v, mode] : accesses) {
      const auto i = static_cast<std::size_t>(v);
      if (mode != AccessMode::read && mode != AccessMode::update) continue;
      h = roots[i] == kNoRoot ? mix(h, *values[i]) : mix(h, static_cast<std::uint64_t>(roots[i]) + 1000);
    }
    for (const auto& [v, mode] : accesses) {
      const auto i = static_cast<std::size_t>(v);
      if (mode == AccessMode::read) continue;
      *orders[i] = mix(*orders[i], h);
      if (mode != AccessMode::order && s.ending != Ending::throws_intact)
        *values[i] = mix(h, static_cast<std::uint64_t>(v));
    }
  }

  State& at(int v) { return states[static_cast<std::size_t>(v)]; }
  std::vector<State> states{kVariables};
  std::map<int, int> outcomes;  ///< root by op
  std::set<int> wrote_nothing;
};

}  // namespace sluice::oracle
