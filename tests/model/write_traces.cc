// Writes what explored runs of the engine told of their steps, a file each, for the model to follow (trace.pml).
//
//   model_traces FOLDER [SCHEDULES]
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

#include "sluice/engine/detail/record.h"
#include "sluice/engine/explore/explore.h"

namespace sluice {
namespace {
using detail::ExplorePolicy;
using detail::Step;
using Record = detail::OpRecord<ExplorePolicy>;

std::ostringstream told;
std::map<const Record*, int> numbers;  // of the latest op in each record
int ops = 0;

void listen(Step step, const Record* op) {
  static constexpr const char* words[] = {"link", "ready", "start", "skip", "done", "fail"};
  if (step == Step::link) numbers[op] = ops++;
  told << words[static_cast<int>(step)] << ' ';
  const bool wait = op->kind == detail::OpKind::wait;
  // Bodies are named after their pusher; of the pushers only the second waits.
  if (step == Step::link) told << (wait ? '1' : op->name[0]) << ' ';
  told << numbers.at(op);
  for (std::uint32_t i = 0; step == Step::link && i < op->inline_count(); ++i) {
    const auto& token = op->inline_tokens[i];
    const char* mode = token.mode == AccessMode::read     ? (wait ? "wait" : "read")
                       : token.mode == AccessMode::update ? "update"
                                                          : "write";
    told << ' ' << token.variable->number << ':' << mode;
  }
  told << '\n';
}

void nothing() {}
void fail() { throw std::runtime_error("it fails"); }

/// Two pushers, two workers; three programs in turn.
bool run(std::uint64_t seed) {
  Engine engine({.mode = EngineMode::explore, .explore_seed = seed, .mode_given = true, .threads = 2});
  engine.on_unobserved_error([](const ErrorRoot&) {});
  const Variable a = engine.variable("a"), b = engine.variable("b");
  const auto one = [&](auto body, std::vector<Access> accesses) { engine.push(body, accesses, {.name = "0"}); };
  const auto two = [&](auto body, std::vector<Access> accesses) { engine.push(body, accesses, {.name = "1"}); };
  const auto wait = [&] {
    try {
      engine.wait(a);
    } catch (const Error&) {
    }
  };
  told.str("");
  numbers.clear();
  ops = 0;
  ExplorePolicy::listener = listen;
  bool ended = false;
  if (seed % 3 == 0) {
    ended = detail::Explorer::get().run({[&] {
                                           one(nothing, {update(a), read(b)}), one(nothing, {read(a), update(b)});
                                         },
                                         [&] {
                                           two(fail, {update(a), write(b)}), wait();
                                         }});
  } else if (seed % 3 == 1) {
    ended = detail::Explorer::get().run({[&] { one(fail, {update(a)}), one(nothing, {read(a)}); },
                                         [&] { two(nothing, {write(a)}), two(nothing, {read(a)}), wait(); }});
  } else {
    ended = detail::Explorer::get().run({[&] {
                                           one(fail, {write(a), update(b)}), one(nothing, {update(a)});
                                         },
                                         [&] {
                                           two(nothing, {read(a), read(b)}), wait();
                                         }});
  }
  ExplorePolicy::listener = nullptr;
  return ended;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: model_traces FOLDER [SCHEDULES]\n");
    return 2;
  }
  const int schedules = argc > 2 ? std::stoi(argv[2]) : 150;
  for (int seed = 1; seed <= schedules; ++seed) {
    if (!sluice::run(static_cast<std::uint64_t>(seed))) {
      std::fprintf(stderr, "a hang with seed %d\n", seed);
      return 1;
    }
    std::ofstream(std::string(argv[1]) + "/seed-" + std::to_string(seed)) << sluice::told.str();
  }
  return 0;
}
