// What errors say of the device on which an op failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "sluice/engine/layer.h"
#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {

using testing::QuietEngine;

std::string text_of(Engine& engine, const Variable& v) {
  try {
    engine.wait(v);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(DeviceTexts, AnErrorNamesTheDeviceBehindThePushSite) {
  QuietEngine engine({.logical_cpus = 2, .providers = {sim_devices(2)}});
  engine.on_unobserved_error([](const ErrorRoot&) {});
  const Variable v = engine.variable(), made = engine.variable();
  const auto fails = [](Context&) { throw std::runtime_error("no"); };
  const auto fails_late = [](Context& c) { c.stream()->launch([] { throw std::runtime_error("no"); }); };
  const auto said = [](int line, const std::string& on) {
    return "[op] device_text_test.cc:" + std::to_string(line) + on + ": no";
  };
  engine.push(fails, {write(v)}, {.on = sim(1), .name = "op"});
  int line = __LINE__ - 1;
  EXPECT_EQ(text_of(engine, v), said(line, " on sim(1)"));
  EXPECT_EQ(engine.error(v)->device, sim(1));
  engine.push(fails_late, {write(v)}, {.on = Place(sim(0), LaneKind::copy_in), .name = "op"});
  line = __LINE__ - 1;
  engine.push([] {}, {read(v), write(made)}, {.name = "reader"});  // skipped: the root stays where it was
  EXPECT_EQ(text_of(engine, made), said(line, " on sim(0)"));
  engine.push(fails, {write(v)}, {.on = cpu(1), .name = "op"});
  line = __LINE__ - 1;
  EXPECT_EQ(text_of(engine, v), said(line, " on cpu(1)"));
  engine.push(fails, {write(v)}, {.name = "op"});
  line = __LINE__ - 1;
  EXPECT_EQ(text_of(engine, v), said(line, ""));
  const LayerScope layer("encoder");
  const Program program = engine.capture([&] { engine.push(fails_late, {write(v)}, {.on = sim(1), .name = "op"}); });
  line = __LINE__ - 1;
  engine.replay(program);
  EXPECT_EQ(text_of(engine, v), said(line, " in encoder on sim(1)"));
}

}  // namespace
}  // namespace sluice
