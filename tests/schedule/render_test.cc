// Pictures and traces: well-formed whatever the labels hold, every box in its place, files written or refused.
#include "sluice/schedule/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/schedule/generators.h"
#include "sluice/schedule/simulate.h"

namespace sluice::parallel {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr auto F = ActionKind::forward;
constexpr auto B = ActionKind::backward;

// Empty if tags balance, attributes are quoted and no bare & or < stands in text; else what is wrong.
std::string xml_fault(const std::string& text) {
  std::vector<std::string> open;
  int roots = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 && c != '\n') return "control character";
    if (c == '&') {
      const std::size_t end = text.find(';', i);
      const std::string entity = end == std::string::npos ? "" : text.substr(i, end - i + 1);
      if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;" && entity != "&#39;") {
        return "bad entity at " + text.substr(i, 10);
      }
      i = end + 1;
      continue;
    }
    if (c != '<') {
      if (open.empty() && !std::isspace(c)) return "text outside of the root";
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    bool quoted = false;
    for (; end < text.size() && (quoted || text[end] != '>'); ++end) {
      if (text[end] == '"') quoted = !quoted;
      if (text[end] == '<') return "'<' inside of a tag";
    }
    if (end == text.size()) return "unclosed tag";
    const std::string tag = text.substr(i + 1, end - i - 1);
    const std::string name = tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "unexpected </" + tag.substr(1) + ">";
      open.pop_back();
    } else {
      if (open.empty() && ++roots > 1) return "second root";
      if (tag.back() != '/') open.push_back(name);
    }
    i = end + 1;
  }
  return open.empty() ? (roots == 1 ? "" : "no root") : "unclosed <" + open.back() + ">";
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

std::vector<TimelineBox> example() {
  const std::vector<StageCost> costs(4, StageCost{0.001, 0.002});
  return to_timeline(simulate(one_f_one_b(4, 8), costs));
}

TEST(Svg, ParserOfThisTestFindsFaults) {
  EXPECT_EQ(xml_fault("<a x=\"1\"><b/>t &amp;</a>\n"), "");
  EXPECT_NE(xml_fault("<a><b></a>"), "");
  EXPECT_NE(xml_fault("<a>&</a>"), "");
  EXPECT_NE(xml_fault("<a/><b/>"), "");
  EXPECT_NE(xml_fault("<a"), "");
}

TEST(Svg, HoldsEveryBoxLabelAndTick) {
  const std::string svg = render_svg(
      example(), {.title = "1F1B", .subtitle = "4 stages", .labels = {"stage 0 · cpu(0)", "stage 1 · cpu(1)"}});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(occurrences(svg, " ms long</title>"), 64u);
  EXPECT_THAT(svg, HasSubstr("<title>1F1B</title>"));
  EXPECT_THAT(svg, HasSubstr(">stage 0 · cpu(0)</text>"));
  EXPECT_THAT(svg, HasSubstr(">stage 3</text>"));
  EXPECT_THAT(svg, HasSubstr(">4 stages</text>"));
  EXPECT_THAT(svg, HasSubstr("<title>B7 on stage 3: 25.000 to 27.000 ms, 2.000 ms long</title>"));
  EXPECT_THAT(svg, HasSubstr(">0 ms</text>"));
  EXPECT_THAT(svg, HasSubstr(">30 ms</text>"));
  EXPECT_THAT(svg, HasSubstr(">73 %</text>"));  // 24 of 33
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_EQ(svg,
            render_svg(example(),
                       {.title = "1F1B", .subtitle = "4 stages", .labels = {"stage 0 · cpu(0)", "stage 1 · cpu(1)"}}));
}

TEST(Svg, TextIsEscapedAndShortened) {
  const std::string hostile = "<script>&\"'\x01</text>";
  const std::string svg = render_svg(example(), {.title = hostile, .subtitle = hostile, .labels = {hostile}});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  std::string endless;
  for (int i = 0; i < 300; ++i) endless += "ü";
  const std::string wide = render_svg(example(), {.title = endless, .labels = {endless}});
  EXPECT_EQ(xml_fault(wide), "");
  EXPECT_THAT(wide, HasSubstr("ü…</text>"));
}

TEST(Svg, AnyTimesGiveAWellFormedPicture) {
  for (const double scale : {1e-9, 1e-6, 1e-3, 1.0, 3600.0}) {
    std::vector<TimelineBox> boxes = example();
    for (TimelineBox& box : boxes) box.start = 1e5 + scale * box.start, box.end = 1e5 + scale * box.end;
    const std::string svg = render_svg(boxes);
    EXPECT_EQ(xml_fault(svg), "") << scale;
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
    EXPECT_LT(occurrences(svg, " ms</text>"), 20u) << scale;
  }
  EXPECT_EQ(xml_fault(render_svg({})), "");
  const std::vector<TimelineBox> instant{{F, 0, 0, 5, 5}};
  EXPECT_EQ(xml_fault(render_svg(instant, {.labels = {"a", "b"}, .width = 480})), "");
}

TEST(Svg, OverlappingBoxesOfARowAreDrawnBelowEachOther) {
  const std::vector<TimelineBox> boxes{{F, 0, 0, 0, 2}, {F, 0, 1, 1, 3}, {B, 0, 0, 3, 4}};
  const std::string svg = render_svg(boxes);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(occurrences(svg, "height=\"22\""), 3u);  // two tracks, half a row each
  EXPECT_THAT(svg, HasSubstr(">100 %</text>"));      // busy counts time once
}

TEST(Svg, PanelsShareScalesAndShowMemory) {
  const std::vector<TimelineBox> slow{{F, 0, 0, 10, 12}, {ActionKind::weight_gradient, 1, 0, 12, 14}};
  const std::vector<TimelineBox> quick{{F, 0, 0, 100, 101}, {ActionKind::weight_gradient, 1, 0, 101, 102}};
  const std::vector<TimelinePanel> panels{{"planned", slow, {{{10, 1 << 20}, {12, 4 << 20}}, {{10, 0}}}},
                                          {"measured", quick, {{{100, 2 << 20}}}}};
  const std::string svg = render_panels(panels, {.title = "two", .labels = {"cpu(0)", "cpu(1)"}, .width = 1000});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, HasSubstr(">planned</text>"));
  EXPECT_THAT(svg, HasSubstr(">measured</text>"));
  EXPECT_EQ(occurrences(svg, ">cpu(1)</text>"), 2u);
  EXPECT_EQ(occurrences(svg, ">memory</text>"), 3u);
  EXPECT_THAT(svg, HasSubstr("<title>memory of cpu(0): at most 4.00 MiB</title>"));
  EXPECT_THAT(svg, HasSubstr(">memory, up to 4.00 MiB</text>"));
  EXPECT_THAT(svg, HasSubstr(">W weight gradient</text>"));
  EXPECT_THAT(svg, HasSubstr("<title>F0 on cpu(0): 0.000 to 1000.000 ms, 1000.000 ms long</title>"));
  // The plot begins at the same place, and 2 s are twice as long as 1 s.
  std::vector<double> widths;
  for (std::size_t i = svg.find("<rect x=\"", svg.find("planned")); i != std::string::npos;
       i = svg.find("<rect x=\"", i + 1)) {
    const std::size_t width = svg.find("width=\"", i) + 7, end = svg.find('>', i);
    if (svg.compare(end, 8, "><title>") == 0) widths.push_back(std::stod(svg.substr(width)));
  }
  ASSERT_EQ(widths.size(), 4u);
  EXPECT_NEAR(widths[0], 2 * widths[2], 0.02);
  const std::vector<TimelinePanel> bad{{"", slow, {{{10, -1}}}}};
  EXPECT_THROW(render_panels(bad), std::invalid_argument);
  EXPECT_EQ(xml_fault(render_panels(std::span<const TimelinePanel>())), "");
}

TEST(Svg, RefusesBoxesThatCannotBe) {
  EXPECT_THROW(render_svg(std::vector<TimelineBox>{{F, -1, 0, 0, 1}}), std::invalid_argument);
  EXPECT_THROW(render_svg(std::vector<TimelineBox>{{F, 0, 0, 2, 1}}), std::invalid_argument);
  EXPECT_THROW(render_svg(std::vector<TimelineBox>{{F, 0, 0, 0, std::numeric_limits<double>::infinity()}}),
               std::invalid_argument);
  EXPECT_THROW(render_svg({}, {.width = 100}), std::invalid_argument);
}

TEST(Perfetto, EventsHoldTheBoxes) {
  std::vector<TimelineBox> boxes = example();
  for (TimelineBox& box : boxes) box.start += 1000, box.end += 1000;
  const std::vector<std::string> labels{"stage 0 · \"cpu(0)\"\n", "\xff not UTF-8"};
  const auto trace = nlohmann::json::parse(render_perfetto(boxes, labels));
  std::vector<nlohmann::json> complete;
  std::vector<std::string> names;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") complete.push_back(event);
    if (event.at("name") == "thread_name") names.push_back(event.at("args").at("name"));
  }
  ASSERT_EQ(complete.size(), boxes.size());
  ASSERT_EQ(names.size(), 4u);
  EXPECT_EQ(names[0], labels[0]);
  EXPECT_EQ(names[3], "stage 3");
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const char* letter = boxes[i].kind == F ? "F" : "B";
    EXPECT_EQ(complete[i].at("name"), letter + std::to_string(boxes[i].microbatch));
    EXPECT_EQ(complete[i].at("tid"), boxes[i].stage);
    EXPECT_NEAR(complete[i].at("ts").get<double>(), (boxes[i].start - 1000) * 1e6, 1e-3);
    EXPECT_NEAR(complete[i].at("dur").get<double>(), (boxes[i].end - boxes[i].start) * 1e6, 1e-3);
  }
  EXPECT_TRUE(nlohmann::json::parse(render_perfetto({})).contains("traceEvents"));
  EXPECT_THROW(render_perfetto(std::vector<TimelineBox>{{B, -2, 0, 0, 1}}), std::invalid_argument);
}

TEST(WriteFile, WritesAllOrSaysWhyNot) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "sluice_write_file";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "out.txt").string();
  const std::string text("a\0b\n", 4);
  write_file(path, "something longer that was there before");
  write_file(path, text);
  std::ifstream in(path, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), text);

  const auto message = [](const std::string& where) -> std::string {
    try {
      write_file(where, "text");
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "written";
  };
  const std::string missing = (folder / "missing" / "out.txt").string();
  EXPECT_EQ(message(missing), "cannot write " + missing + ": No such file or directory");
  EXPECT_THAT(message(folder.string()), HasSubstr("Is a directory"));
  if (std::filesystem::exists("/dev/full")) {
    EXPECT_THAT(message("/dev/full"), HasSubstr("No space left on device"));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace sluice::parallel
