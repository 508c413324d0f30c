#include "sluice/schedule/schedule_text.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <utility>

#include "sluice/schedule/verify.h"

namespace sluice::parallel {
namespace {

constexpr int kMost = 1'000'000;  // of stages and of microbatches: more could only be a mistake

constexpr const char* kLines =
    "': a line begins with 's' and a stage, 'd' and a device, 'schedule', 'sum', 'tied', 'free' or 'rings'";

std::optional<ActionKind> kind_of(char letter) {
  for (int kind = 0; kind < kActionKinds; ++kind) {
    if (row_of(static_cast<ActionKind>(kind)).letter == letter) return static_cast<ActionKind>(kind);
  }
  return std::nullopt;
}

/// One line of a text, word by word, and action by action.
class Line {
 public:
  Line(std::string_view text, const std::string& place) : text_(text.substr(0, text.find('#'))), place_(place) {}

  bool at_end() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\t' || text_.front() == '\r')) {
      text_.remove_prefix(1);
    }
    return text_.empty();
  }
  std::string_view word() {
    if (at_end()) return {};
    const std::string_view word = text_.substr(0, text_.find_first_of(" \t\r"));
    text_.remove_prefix(word.size());
    return word;
  }
  std::string_view rest() {
    if (at_end()) return {};
    while (text_.back() == ' ' || text_.back() == '\t' || text_.back() == '\r') text_.remove_suffix(1);
    return std::exchange(text_, {});
  }
  [[noreturn]] void refuse(const std::string& why) const { throw std::invalid_argument(place_ + ": " + why); }

  /// The next one or several actions. `stage`: of a line with one stage, else -1.
  void actions(int stage, std::vector<Action>& list) {
    if (at_end()) return;
    const std::string_view word = text_.substr(0, text_.find_first_of(" \t\r"));
    const auto no_action = [&] {
      refuse("'" + std::string(word) + "': an action is F, B, I, W, R or U and a number" +
             (stage < 0 ? ", as F0.3: stage and microbatch" : ""));
    };
    const std::optional<ActionKind> kind = kind_of(text_.front());
    if (!kind) no_action();
    text_.remove_prefix(1);
    std::optional<int> first = number();
    if (row_of(*kind).of_stage) {
      if (!first && stage < 0) no_action();
      list.push_back({*kind, first.value_or(stage), 0});
      return;
    }
    if (!first) no_action();
    if (stage < 0) {
      if (!skip('.')) no_action();
      stage = *first;
      first = number();
      if (!first) no_action();
    }
    int last = *first;
    if (skip('-')) {
      const std::optional<int> end = number();
      if (!end || *end < *first) refuse("'" + std::string(word) + "': a range counts up, as F0-3");
      last = *end;
    }
    for (int k = *first; k <= last; ++k) list.push_back({*kind, stage, k});
  }

  std::optional<int> number() {
    int value = 0;
    const auto read = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (read.ec == std::errc::result_out_of_range || value > kMost) refuse("a number is too large");
    if (read.ec != std::errc() || value < 0) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(read.ptr - text_.data()));
    return value;
  }
  bool starts_with(char c) const { return !text_.empty() && text_.front() == c; }
  bool skip(char c) {
    if (!starts_with(c)) return false;
    text_.remove_prefix(1);
    return true;
  }

 private:
  std::string_view text_;
  const std::string& place_;
};

void read_line(Line& line, Schedule& schedule) {
  if (line.at_end()) return;
  const std::string word(line.word());
  if (word == "schedule") {
    if (!line.at_end()) schedule.name = line.rest();
  } else if (word == "sum") {
    try {
      schedule.sum = sum_tree(line.rest());
    } catch (const std::invalid_argument& e) {
      line.refuse(e.what());
    }
  } else if (word == "tied") {
    TiedWeight tied{std::string(line.word()), {}, {}};
    while (!line.at_end() && !line.starts_with('(')) {
      const std::optional<int> stage = line.number();
      if (!stage) line.refuse("a tied weight is 'tied', its name, its stages, and perhaps a tree of its uses");
      tied.stages.push_back(*stage);
    }
    try {
      if (!line.at_end()) tied.uses = sum_tree(line.rest());
    } catch (const std::invalid_argument& e) {
      line.refuse(e.what());
    }
    schedule.tied.push_back(std::move(tied));
  } else if (word == "free" || word == "rings") {
    if (word == "free") schedule.fixed_order = false;
    while (!line.at_end()) {
      const std::optional<int> saved = line.number();
      const bool comma = line.skip(',');
      const std::optional<int> kept = line.number();
      if (!saved || !comma || !kept) line.refuse("'" + word + "' has pairs of slots behind it, as 4,7");
      schedule.rings.push_back({*saved, *kept});
    }
  } else if (word[0] == 's' || word[0] == 'd') {
    int number = 0;
    const auto read = std::from_chars(word.data() + 1, word.data() + word.size(), number);
    if (read.ec != std::errc() || read.ptr != word.data() + word.size() || number < 0) {
      line.refuse("'" + word + kLines);
    }
    if (word[0] == 'd' && number != schedule.devices()) {
      line.refuse("'" + word + "': the next device is d" + std::to_string(schedule.devices()));
    }
    std::vector<Action>& list = schedule.per_device.emplace_back();
    while (!line.at_end()) line.actions(word[0] == 's' ? number : -1, list);
    for (const Action& a : list) {
      schedule.stages = std::max(schedule.stages, a.stage + 1);
      schedule.microbatches = std::max(schedule.microbatches, a.microbatch + 1);
    }
  } else {
    line.refuse("'" + word + kLines);
  }
}

}  // namespace

std::string to_text(const Schedule& schedule, bool whole) {
  std::string text;
  if (whole && !schedule.name.empty()) {
    text += "schedule " + schedule.name;
    std::ranges::replace_if(
        text, [](char c) { return c == '#' || c == '\n'; }, '_');
    text += "\n";
  }
  for (std::size_t d = 0; d < schedule.per_device.size(); ++d) {
    const auto& list = schedule.per_device[d];
    const bool one_stage =
        !list.empty() && std::ranges::all_of(list, [&](const Action& a) { return a.stage == list.front().stage; });
    text += one_stage ? "s" + std::to_string(list.front().stage) : "d" + std::to_string(d);
    for (std::size_t i = 0; i < list.size();) {
      const Action& first = list[i];
      std::size_t run = 1;
      while (i + run < list.size() && list[i + run].kind == first.kind && list[i + run].stage == first.stage &&
             list[i + run].microbatch == first.microbatch + static_cast<int>(run)) {
        ++run;
      }
      if (run < 3) run = 1;
      const bool step = row_of(first.kind).of_stage;
      text.append(" ").append(1, row_of(first.kind).letter);
      if (step || !one_stage) text += std::to_string(first.stage) + (step ? "" : ".");
      if (!step) text += std::to_string(first.microbatch);
      if (run > 1) text.append("-").append(std::to_string(list[i + run - 1].microbatch));
      i += run;
    }
    text += "\n";
  }
  if (whole && !schedule.sum.empty()) text += "sum " + to_text(schedule.sum) + "\n";
  for (const TiedWeight& tied : schedule.tied) {
    if (!whole) break;
    text += "tied " + tied.name;
    for (const int stage : tied.stages) text += " " + std::to_string(stage);
    const bool one = tied.uses.postfix.size() == 1;  // in brackets, or it would be a stage
    if (!tied.uses.empty()) text += one ? " (" + to_text(tied.uses) + ")" : " " + to_text(tied.uses);
    text += "\n";
  }
  if (whole && (!schedule.fixed_order || !schedule.rings.empty())) {
    text += schedule.fixed_order ? "rings" : "free";
    const bool alike = std::ranges::adjacent_find(schedule.rings, std::not_equal_to()) == schedule.rings.end();
    for (std::size_t s = 0; s < (alike ? std::min<std::size_t>(1, schedule.rings.size()) : schedule.rings.size());
         ++s) {
      text += " " + std::to_string(schedule.rings[s].saved) + "," + std::to_string(schedule.rings[s].kept);
    }
    text += "\n";
  }
  return text;
}

Schedule parse_schedule(std::string_view text, const std::string& file) {
  Schedule schedule;
  schedule.name = file;
  std::vector<int> lines;  // of each device
  for (int number = 1; !text.empty(); ++number) {
    const std::string place = file + ":" + std::to_string(number);
    const std::size_t end = std::min(text.find('\n'), text.size());
    Line line(text.substr(0, end), place);
    read_line(line, schedule);
    if (lines.size() < schedule.per_device.size()) lines.push_back(number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  // One pair is every stage's.
  if (schedule.rings.size() == 1) schedule.rings.resize(static_cast<std::size_t>(schedule.stages), schedule.rings[0]);
  try {
    verify(schedule);
  } catch (const ScheduleError& e) {
    const std::string line = e.device() < 0 ? "" : ":" + std::to_string(lines[static_cast<std::size_t>(e.device())]);
    throw std::invalid_argument(file + line + ": " + e.what());
  }
  return schedule;
}

Schedule load_schedule(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": " + std::strerror(errno));
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) throw std::runtime_error(path + ": " + std::strerror(errno));
  return parse_schedule(text, path);
}

}  // namespace sluice::parallel
