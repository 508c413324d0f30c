// Layers: the path that a push carries to its errors and traces (engine/layer.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sluice/engine/engine.h"
#include "support.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::QuietEngine;
using testing::thrown;

constexpr auto fails = [] { throw std::runtime_error("no such file"); };

/// The path of each traced op, by the op's name.
std::map<std::string, std::string> layers_of(const std::vector<TraceEvent>& events) {
  std::map<std::string, std::string> layers;
  for (const TraceEvent& e : events) layers[e.name] = e.layer;
  return layers;
}

TEST(Layers, ScopesNestAndEnd) {
  EXPECT_STREQ(current_layer(), "");
  {
    const LayerScope encoder("encoder");
    EXPECT_STREQ(current_layer(), "encoder");
    {
      const LayerScope second("2");
      const LayerScope attention("attention");
      EXPECT_STREQ(current_layer(), "encoder.2.attention");
      const LayerScope nothing("");
      EXPECT_STREQ(current_layer(), "encoder.2.attention");
    }
    EXPECT_STREQ(current_layer(), "encoder");
    const char* const first = current_layer();
    const DeviceScope other(cpu(0));
    const LayerScope third("3");
    EXPECT_STREQ(current_layer(), "encoder.3");
    EXPECT_STREQ(first, "encoder");
  }
  EXPECT_STREQ(current_layer(), "");
}

TEST(Layers, ErrorsNameThem) {
  QuietEngine engine({.threads = 1});
  const Variable v = engine.variable();
  int line = 0;
  {
    const LayerScope encoder("encoder"), second("2");
    line = __LINE__ + 1;
    engine.push(fails, {write(v)}, {.name = "resize"});
  }
  const ErrorRef root = thrown([&] { engine.wait(v); });
  ASSERT_TRUE(root);
  EXPECT_EQ(root->layer, "encoder.2");
  EXPECT_EQ(root->to_string(), "[resize] layer_scope_test.cc:" + std::to_string(line) + " in encoder.2: no such file");
  // An op in no layer that uses the record of one that was in a layer.
  for (int i = 0; i < 10; ++i) {
    const Variable w = engine.variable();
    engine.push(fails, {write(w)}, {.name = "resize"});
    EXPECT_EQ(thrown([&] { engine.wait(w); })->layer, "");
  }
  // Errors of the call.
  const LayerScope decoder("decoder");
  try {
    engine.push([] {}, {}, {.priority = 9, .name = "crop"});
    ADD_FAILURE() << "no error";
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), HasSubstr(" in decoder: priority 9"));
  }
}

TEST(Layers, TracesHaveThem) {
  QuietEngine engine({.threads = 2});
  const Variable v = engine.variable();
  engine.start_trace();
  engine.push([] {}, {update(v)}, {.name = "bare"});
  {
    const LayerScope layer("a\"b");
    engine.push([] {}, {update(v)}, {.name = "plain"});
    engine.push([] {}, {update(v)}, {.name = "scopeless", .scopeless = true});
    engine.push([](Completion done) { done.done(); }, {update(v)}, {.name = "async"});
    const CancelScope cancel;
    const CancelScope::Guard guard(cancel);
    engine.push([] {}, {update(v)}, {.name = "rare"});
  }
  engine.wait_all();
  const std::vector<TraceEvent> events = engine.stop_trace();
  const auto layers = layers_of(events);
  for (const char* name : {"plain", "scopeless", "async", "rare"}) EXPECT_EQ(layers.at(name), "a\"b") << name;
  EXPECT_EQ(layers.at("bare"), "");
  const std::string json = to_perfetto(events);
  EXPECT_THAT(json, HasSubstr("\"layer\": \"a\\\"b\"}}"));
  EXPECT_THAT(to_perfetto(std::span(events).first(0)), Not(HasSubstr("layer")));
}

TEST(Layers, BodiesPushInTheLayerOfTheirOp) {
  QuietEngine engine({.threads = 2});
  std::string seen, below, after;
  {
    const LayerScope layer("outer");
    engine
        .push(
            [&] {
              seen = current_layer();
              const LayerScope inner("inner");
              engine.push([&] { below = current_layer(); }, {});
            },
            {})
        .wait();
  }
  while (engine.in_flight() > 0) engine.wait_all();
  engine.push([&] { after = current_layer(); }, {}).wait();
  EXPECT_EQ(seen, "outer");
  EXPECT_EQ(below, "outer.inner");
  EXPECT_EQ(after, "");
}

TEST(Layers, CapturedOpsKeepThem) {
  QuietEngine engine({.threads = 2});
  const Variable v = engine.variable();
  std::string seen;
  bool fail = false;
  const Program program = engine.capture([&] {
    const LayerScope layer("step");
    engine.push(
        [&] {
          seen = current_layer();
          if (fail) fails();
        },
        {write(v)}, {.name = "captured"});
  });
  engine.start_trace();
  engine.replay(program).wait();
  EXPECT_EQ(layers_of(engine.stop_trace()).at("captured"), "step");
  EXPECT_EQ(seen, "step");
  fail = true;
  engine.replay(program);
  EXPECT_EQ(thrown([&] { engine.wait(v); })->layer, "step");
}

// One path is one text, whoever names it first.
TEST(Layers, ThreadsNameTheSamePathsAtOnce) {
  constexpr int kThreads = 4, kNames = 200;
  std::vector<std::vector<const char*>> paths(kThreads);
  testing::Meeting meeting(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      meeting.arrive_and_wait();
      const LayerScope top("at once");
      for (int i = 0; i < kNames; ++i) {
        const LayerScope layer(std::to_string(i));
        paths[static_cast<std::size_t>(t)].push_back(current_layer());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& list : paths) EXPECT_EQ(list, paths[0]);
  EXPECT_STREQ(paths[0][7], "at once.7");
  EXPECT_STREQ(current_layer(), "");
}

}  // namespace
}  // namespace sluice
