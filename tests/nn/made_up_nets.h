// What is asked of each net that make_up_nets.py makes up.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "nn_support.h"
#include "sluice/nn/nets.h"

namespace sluice::test {

using Paths = std::vector<std::pair<std::string, nn::Kind>>;

/// Two nets of one struct have the same values.
inline void expect_same_values(const nn::Contents& a, const nn::Contents& b, bool constants = true) {
  ASSERT_EQ(a.slots.size(), b.slots.size());
  for (std::size_t i = 0; i < a.slots.size(); ++i) {
    EXPECT_NE(a.slots[i].state, b.slots[i].state);
    if (!constants && a.slots[i].state->kind == nn::Kind::constant) continue;
    EXPECT_TRUE(bits(a.slots[i].state->value) == bits(b.slots[i].state->value)) << a.slots[i].name;
  }
}

template <class Net>
void check_made_up(const Paths& paths) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  const Net net;
  const nn::Contents contents = nn::contents(net);
  Paths seen;
  std::set<std::string> unique;
  for (const nn::Named& slot : contents.slots) {
    seen.emplace_back(slot.name, slot.state->kind);
    unique.insert(slot.name);
  }
  EXPECT_EQ(seen, paths);
  EXPECT_EQ(unique.size(), paths.size());
  const Net early = nn::clone(net);
  nn::initialise(net, 1);
  nn::initialise(early, 1);
  expect_same_values(nn::contents(early), contents);
  const Net late = nn::clone(net), other;
  expect_same_values(nn::contents(late), contents);
  nn::initialise(other, 2);
  nn::blend(other, net, 1);
  expect_same_values(nn::contents(other), contents);
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("sluice_made_up_" + std::to_string(::getpid()));
  nn::save(file, {{"net", net}});
  const Net loaded;
  nn::load(file, {{"net", loaded}});
  expect_same_values(nn::contents(loaded), contents);
  std::filesystem::remove(file);
  const Device to = on_streams() ? device(1) : cpu(0);
  nn::to(net, to);
  for (const nn::Named& slot : contents.slots) EXPECT_EQ(slot.state->value.device(), to);
  expect_same_values(nn::contents(late), contents);
}

}  // namespace sluice::test
