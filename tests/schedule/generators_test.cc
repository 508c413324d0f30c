// The known schedules: exact orders, each action once, and memory as the formulas say.
#include "sluice/schedule/generators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>

#include "schedules.h"
#include "sluice/schedule/schedule_text.h"

namespace sluice::parallel {
namespace {

TEST(Generators, TableOfTheReference) {
  EXPECT_EQ(to_text(one_f_one_b(4, 8)),
            "s0 F0-3 B0 F4 B1 F5 B2 F6 B3 F7 B4-7\n"
            "s1 F0-2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5-7\n"
            "s2 F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7\n"
            "s3 F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7\n");
  EXPECT_EQ(to_text(zb_h1(4, 8)),
            "s0 F0-3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7\n"
            "s1 F0-2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7\n"
            "s2 F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5-7\n"
            "s3 F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4-7\n");
  const std::string h2 = to_text(zb_h2(4, 8));
  EXPECT_TRUE(h2.starts_with("s0 F0-6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7\n")) << h2;
  EXPECT_TRUE(h2.ends_with("s3 F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1-7\n")) << h2;
  EXPECT_EQ(to_text(gpipe(2, 4)), "s0 F0-3 B0-3\ns1 F0-3 B0-3\n");
  EXPECT_EQ(to_text(one_f_one_b(4, 2)), "s0 F0 F1 B0 B1\ns1 F0 F1 B0 B1\ns2 F0 F1 B0 B1\ns3 F0 B0 F1 B1\n");
  // Two devices with two chunks: groups of two microbatches.
  EXPECT_EQ(to_text(interleaved(2)(4, 4)),
            "d0 F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3\n"
            "d1 F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3\n");
  EXPECT_EQ(to_text(zbv(2, 1)), "d0 F0.0 F1.0 I1.0 W1.0 I0.0 W0.0\n");
}

TEST(Generators, EachActionOnceAndAccepted) {
  for (const Schedule& schedule : fixed_and_free_schedules()) {
    SCOPED_TRACE(describe(schedule));
    std::map<Action, int> times;
    for (const auto& list : schedule.per_device) {
      for (const Action& a : list) ++times[a];
    }
    const bool halves = times.contains({I, 0, 0});
    EXPECT_EQ(times.size(), static_cast<std::size_t>((halves ? 3 : 2) * schedule.stages * schedule.microbatches));
    for (const auto& [action, n] : times) EXPECT_EQ(n, 1) << to_text(action);
    EXPECT_EQ(refusal(schedule), "accepted");
  }
}

// The position of each action by formula, written down differently from how the schedule is built.
TEST(Generators, OrderByFormula) {
  for (const Schedule& schedule : schedules({"gpipe", "1f1b", "interleaved:1"})) {
    SCOPED_TRACE(describe(schedule));
    const int p = schedule.stages, m = schedule.microbatches;
    for (int s = 0; s < p; ++s) {
      const int warm_up = schedule.name == "gpipe" ? m : std::min(p - 1 - s, m);
      std::vector<Action> expected(static_cast<std::size_t>(2 * m));
      for (int k = 0; k < m; ++k) {
        // Before F_k: all earlier F's, and the B's of the pairs between the warm-up and it. Before B_k: likewise.
        const int f = k + std::max(0, k - warm_up), b = k + std::min(m, warm_up + k + 1);
        expected[static_cast<std::size_t>(f)] = {F, s, k};
        expected[static_cast<std::size_t>(b)] = {B, s, k};
      }
      EXPECT_EQ(schedule.per_device[static_cast<std::size_t>(s)], expected) << "stage " << s;
    }
  }
}

/// The number of actions that stand before each one, by formula, of schedules with halves and one stage a device:
/// `ahead` forwards to warm up, W(k) behind I(k + lag).
void expect_halves(const Schedule& schedule, int s, int ahead, int lag) {
  const int m = schedule.microbatches, warm_up = std::min(ahead, m);
  const auto& list = schedule.per_device[static_cast<std::size_t>(s)];
  ASSERT_EQ(list.size(), static_cast<std::size_t>(3 * m));
  for (int place = 0; place < 3 * m; ++place) {
    const auto [kind, stage, k] = list[static_cast<std::size_t>(place)];
    ASSERT_EQ(stage, s);
    int expected = 0;
    if (kind == F) {
      const int inputs = std::max(0, k - warm_up + 1);  // one I before each F behind the warm-up, with its W
      expected = k + inputs + std::max(0, inputs - lag);
    } else if (kind == I) {
      expected = k + std::min(m, warm_up + k) + std::max(0, k - lag);
    } else {
      const int inputs = std::min(m, k + lag + 1);
      expected = k + inputs + std::min(m, warm_up + inputs - 1);
    }
    EXPECT_EQ(place, expected) << to_text(list[static_cast<std::size_t>(place)]);
  }
}

TEST(Generators, OrderOfZeroBubbleByFormula) {
  for (const Schedule& schedule : schedules({"zb-h1", "zb-h2"})) {
    SCOPED_TRACE(describe(schedule));
    const int p = schedule.stages;
    for (int s = 0; s < p; ++s) {
      SCOPED_TRACE("stage " + std::to_string(s));
      schedule.name == "zb-h1" ? expect_halves(schedule, s, p - s, s)
                               : expect_halves(schedule, s, 2 * (p - 1 - s) + 1, 2 * s);
    }
  }
}

/// Megatron's order, as an interpreter that keeps counts for each chunk rather than numbers of passes.
std::vector<Action> interleaved_oracle(int device, int p, int v, int m) {
  std::vector<std::pair<int, int>> forwards, backwards;  // chunk and microbatch
  for (int group = 0; group < m; group += p) {
    for (int chunk = 0; chunk < v; ++chunk) {
      for (int k = group; k < group + p; ++k) {
        forwards.emplace_back(chunk, k);
        backwards.emplace_back(v - 1 - chunk, k);
      }
    }
  }
  std::vector<Action> list;
  std::size_t f = 0, b = 0;
  const auto forward = [&] {
    list.push_back({F, forwards[f].first * p + device, forwards[f].second});
    ++f;
  };
  const auto backward = [&] {
    list.push_back({B, backwards[b].first * p + device, backwards[b].second});
    ++b;
  };
  const int warm_up = 2 * (p - device - 1) + (v - 1) * p;
  while (f < forwards.size() && f < static_cast<std::size_t>(warm_up)) forward();
  while (f < forwards.size()) {
    forward();
    backward();
  }
  while (b < backwards.size()) backward();
  return list;
}

TEST(Generators, InterleavedEqualsItsOracle) {
  for (const int v : {2, 3}) {
    for (const Schedule& schedule : schedules({"interleaved:" + std::to_string(v)})) {
      SCOPED_TRACE(describe(schedule));
      const int p = schedule.devices();
      for (int d = 0; d < p; ++d) {
        EXPECT_EQ(schedule.per_device[static_cast<std::size_t>(d)], interleaved_oracle(d, p, v, schedule.microbatches));
      }
    }
  }
}

TEST(Generators, SavedAndKeptAreTheFormulas) {
  for (const Schedule& schedule : fixed_schedules()) {
    SCOPED_TRACE(describe(schedule));
    const int p = schedule.devices(), m = schedule.microbatches;
    for (int s = 0; s < schedule.stages; ++s) {
      const int saved = peak_saved(schedule, s), kept = peak_kept(schedule, s);
      if (schedule.name == "gpipe") {
        EXPECT_EQ(saved, m) << "stage " << s;
      } else if (schedule.name == "1f1b" || schedule.name == "interleaved:1") {
        EXPECT_EQ(saved, std::min(p - s, m)) << "stage " << s;
      } else if (schedule.name == "zb-h1") {
        EXPECT_EQ(saved, std::min(p - s, m)) << "stage " << s;
        EXPECT_EQ(kept, std::min(s + 1, m)) << "stage " << s;
      } else if (schedule.name == "zb-h2") {
        EXPECT_EQ(saved, std::min(2 * (p - 1 - s) + 1, m)) << "stage " << s;
        EXPECT_EQ(kept, std::min(2 * s + 1, m)) << "stage " << s;
      }
    }
    // What is begun and not done, in stages of a device, where saved and kept weigh the same.
    const std::vector<StageBytes> ones(static_cast<std::size_t>(schedule.stages), StageBytes{.saved = 1, .kept = 1});
    const std::vector<PeakBytes> peaks = peak_bytes(schedule, ones);
    for (int d = 0; d < p; ++d) {
      const double held = peaks[static_cast<std::size_t>(d)].bytes;
      // An I holds what it takes and what it gives while it runs: one more.
      if (schedule.name == "zb-h1") {
        EXPECT_EQ(held, std::min(p, m) + 1);
      }
      if (schedule.name == "zb-h2") {
        EXPECT_EQ(held, std::min(2 * p - 1, m) + 1);
      }
      if (schedule.name == "zbv" && m >= 2 * p) {
        EXPECT_EQ(held, 2 * p + 1) << "each device of p is half of a device's share";
      }
    }
    if (schedule.name.starts_with("interleaved:") && schedule.stages > p && m >= 2 * p) {
      const int v = schedule.stages / p;
      EXPECT_EQ(peaks[0].bytes, p * v + p - 1) << "p (1 + (p - 1) / (p v)) of a device's whole share";
    }
  }
}

/// How many actions of device i's list stand before each one, from where its phases begin: warm-up; F of both stages in
/// turns; whole microbatches of the later stage; rounds of both stages, with and without an F of the earlier one; the
/// last input gradients, and what weight gradients are left. `m` is at least 2p - 1.
int place_in_the_v(int p, int m, int i, ActionKind kind, bool later, int k) {
  const int warm = 2 * (p - i) - 1, turns = warm + 2 * i, rounds = turns + 3 * (p - i);
  const int with_f = m - (2 * p - 1 - i), n = m - p;  // rounds
  const auto round = [&](int r) { return rounds + 6 * r - std::max(0, r - with_f); };
  const auto at = [&](int r, int place) { return round(r) + place - (r >= with_f ? 1 : 0); };
  const int end = round(n), lasts = end + 2 * i, tail = lasts + 2 * (p - i);
  if (kind == F && !later) return k < warm ? k : k < warm + i ? warm + 2 * (k - warm) + 1 : at(k - warm - i, 0);
  if (kind == F) return k < i ? warm + 2 * k : k < p ? turns + 3 * (k - i) : at(k - p, 3);
  if (later && kind == I)
    return k < p - i ? turns + 3 * k + 1 : k < m - i ? at(k - p + i, 4) : end + 2 * (k - m + i) + 1;
  if (later) return k < p - i ? turns + 3 * k + 2 : k < m - i ? at(k - p + i, 5) : tail + k - m + i;
  if (kind == I) return k < n ? at(k, 1) : k < n + i ? end + 2 * (k - n) : lasts + 2 * (k - n - i);
  return k < n ? at(k, 2) : k < m - i ? lasts + 2 * (k - n) + 1 : tail + i + k - m + i;
}

TEST(Generators, OrderOfTheVByFormula) {
  for (const Schedule& schedule : schedules({"zbv"})) {
    SCOPED_TRACE(describe(schedule));
    const int p = schedule.devices(), m = std::max(2 * p - 1, schedule.microbatches);
    for (int i = 0; i < p; ++i) {
      std::vector<Action> expected(static_cast<std::size_t>(6 * m));
      for (const auto kind : {F, I, W}) {
        for (const bool later : {false, true}) {
          for (int k = 0; k < m; ++k) {
            const Action a{kind, later ? 2 * p - 1 - i : i, k};
            expected[static_cast<std::size_t>(place_in_the_v(p, m, i, kind, later, k))] = a;
          }
        }
      }
      // With fewer microbatches, those that there are.
      std::erase_if(expected, [&](const Action& a) { return a.microbatch >= schedule.microbatches; });
      EXPECT_EQ(schedule.per_device[static_cast<std::size_t>(i)], expected) << "device " << i;
    }
  }
}

TEST(Generators, InterleavedIsNotDefinedForOtherMicrobatches) {
  for (const int v : {2, 3}) {
    for (const int p : {2, 3, 4, 8}) {
      for (int m = 1; m <= 4 * p; ++m) {
        if (m % p == 0) continue;
        EXPECT_THROW(interleaved(v)(p * v, m), std::invalid_argument) << v << " " << p << " " << m;
      }
    }
  }
}

/// The lists of free orders are those of fixed ones, and the rings of the V allow as many bytes as ZBV uses.
TEST(Generators, FreeOrdersPreferWhatFixedOrdersDo) {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : microbatch_counts(p)) {
      const Schedule fixed = zbv(2 * p, m), free = dynamic_v()(2 * p, m);
      SCOPED_TRACE(describe(free));
      EXPECT_FALSE(free.fixed_order);
      EXPECT_EQ(free.per_device, fixed.per_device);
      const std::vector<StageBytes> ones(static_cast<std::size_t>(2 * p), StageBytes{.saved = 1, .kept = 1});
      const std::vector<PeakBytes> peaks = peak_bytes(free, ones), of_fixed = peak_bytes(fixed, ones);
      for (int d = 0; d < p; ++d) {
        const auto at = [&](int stage) { return free.rings[static_cast<std::size_t>(stage)]; };
        EXPECT_EQ(at(d), (Rings{2 * p - 1 - d, 2 * p - 1 - d}));
        EXPECT_EQ(at(2 * p - 1 - d), (Rings{d + 1, d + 1}));
        if (m < 2 * p) continue;
        EXPECT_EQ(peaks[static_cast<std::size_t>(d)].bytes, of_fixed[static_cast<std::size_t>(d)].bytes);
      }
    }
  }
  const Schedule given = make_schedule("dynamic-v:5,31", 8, 9);
  EXPECT_THAT(given.rings, testing::ElementsAre(Rings{4, 27}, Rings{4, 23}, Rings{3, 19}, Rings{2, 15}, Rings{3, 16},
                                                Rings{2, 12}, Rings{1, 8}, Rings{1, 4}));
  // With one stage a device the lists are those of the fixed order with as many slots.
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : microbatch_counts(p)) {
      EXPECT_EQ(dynamic({p, p})(p, m).per_device, zb_h1(p, m).per_device);
      EXPECT_EQ(dynamic({p, 2 * p - 1})(p, m).per_device, zb_h2(p, m).per_device);
      EXPECT_EQ(dynamic({5, 3 * p})(p, m).per_device, zb_h2(p, m).per_device);
      EXPECT_EQ(dynamic()(p, m).rings, std::vector(static_cast<std::size_t>(p), Rings{p, 2 * p - 1}));
    }
  }
  EXPECT_EQ(to_text(dynamic({4, 3})(5, 3)),
            "s0 F0-2 I0 W0 I1 W1 I2 W2\n"
            "s1 F0-2 I0 I1 W0 I2 W1 W2\n"
            "s2 F0 F1 I0 F2 I1 W0 I2 W1 W2\n"
            "s3 F0 F1 I0 F2 I1 I2 W0-2\n"
            "s4 F0 I0 F1 I1 F2 I2 W0-2\n");
  const Schedule free = in_free_order(zb_h1(2, 4), {{1, 2}, {3, 4}});
  EXPECT_EQ(free.name, "free zb-h1");
  EXPECT_EQ(free.per_device, zb_h1(2, 4).per_device);
  EXPECT_FALSE(free.fixed_order);
}

// A device of ZB-H1 waits with its W, and recomputation frees nothing of what they read.
TEST(Generators, LateWeightGradientsKeepWhatRecomputationDoesNotFree) {
  const std::vector<StageBytes> bytes(4, {.weights = 7, .saved = 8, .kept = 12, .input = 1.5, .both = 8});
  const auto most = [&](const Schedule& schedule) {
    double all = 0;
    for (const PeakBytes& peak : peak_bytes(schedule, bytes)) all = std::max(all, peak.bytes);
    return all;
  };
  const auto again = [](const Schedule& schedule) { return with_recompute(schedule, {true, true, true, true}); };
  for (const int m : {4, 8, 16}) {
    EXPECT_EQ(most(one_f_one_b(4, m)), 39);
    EXPECT_EQ(most(again(one_f_one_b(4, m))), 21);
    EXPECT_EQ(most(zb_h1(4, m)), 55);
    EXPECT_EQ(most(again(zb_h1(4, m))), 55);
  }
}

TEST(Generators, BadArgumentsGiveOneClearLine) {
  const auto message = [](const char* name, int p, int m) -> std::string {
    try {
      make_schedule(name, p, m);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message("zigzag", 2, 2),
            "unknown schedule 'zigzag': known are gpipe, 1f1b, interleaved:CHUNKS, zb-h1, zb-h2, zbv, dynamic, "
            "dynamic:SAVED,KEPT, dynamic-v, dynamic-v:SAVED,KEPT");
  EXPECT_EQ(message("gpipe", 0, 4), "schedule 'gpipe' needs at least 1 stage, not 0");
  EXPECT_EQ(message("1f1b", 4, -1), "schedule '1f1b' needs at least 1 microbatch, not -1");
  EXPECT_EQ(message("interleaved:3", 12, 5),
            "schedule 'interleaved:3' needs a multiple of its 4 devices as microbatches, not 5");
  EXPECT_EQ(message("interleaved:3", 8, 4), "schedule 'interleaved:3' needs a multiple of 3 stages, not 8");
  EXPECT_EQ(message("interleaved:0", 8, 4), "schedule 'interleaved:0' needs at least 1 chunk");
  EXPECT_EQ(message("interleaved:x", 8, 4), "schedule 'interleaved:x': 'x' is no number");
  EXPECT_EQ(message("interleaved", 8, 4).substr(0, 30), "unknown schedule 'interleaved'");
  EXPECT_EQ(message("zbv", 3, 4), "schedule 'zbv' needs a multiple of 2 stages, not 3");
  EXPECT_EQ(message("dynamic:2,", 3, 4), "schedule 'dynamic:2,': '' is no number");
  EXPECT_EQ(message("dynamic-v:1,4", 4, 4), "schedule 'dynamic-v' needs at least 2 slots on a device, not 1");
  EXPECT_EQ(message("dynamic-v", 3, 4), "schedule 'dynamic-v' needs a multiple of 2 stages, not 3");
  try {
    in_free_order(gpipe(2, 2), {{1, 1}});
    ADD_FAILURE() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "schedule 'gpipe' needs a pair of rings for each of its 2 stages, not 1");
  }
  EXPECT_THROW(peak_saved(gpipe(2, 2), 2), std::invalid_argument);
  EXPECT_THROW(peak_saved(gpipe(2, 2), -1), std::invalid_argument);
}

}  // namespace
}  // namespace sluice::parallel
