#include "sluice/schedule/schedule_text.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "sluice/schedule/excerpt.h"
#include "sluice/schedule/verify.h"

namespace sluice::parallel {
namespace {

constexpr int kMost = 1 << 24;                               // of any number: more could only be a mistake
constexpr int kMostSlots = std::numeric_limits<int>::max();  // of a ring, by which nothing is sized
constexpr std::size_t kShortText = 1 << 17;                  // so many actions any text may list

constexpr std::size_t kQuoted = 24;  // so much of a word stands in an error

/// Of the actions that a text of so many bytes lists. Without ranges each takes two bytes or more.
std::size_t most_actions(std::size_t bytes) { return kShortText + bytes / 2; }

[[noreturn]] void refuse(const std::string& file, int line, std::string_view why) {
  std::string place = file;
  if (file.size() > 80) {  // of a path the end says more
    std::size_t cut = file.size() - 77;
    while (cut < file.size() && is_continued(file[cut])) ++cut;
    place = "..." + file.substr(cut);
  }
  throw std::invalid_argument(
      excerpt(place + ":" + std::to_string(line) + ": " + std::string(why.substr(0, 200)), 200));
}

constexpr const char* kLines =
    "a line begins with 's' and a stage, 'd' and a device, 'schedule', 'sum', 'tied', 'free' or 'rings'";

std::optional<ActionKind> kind_of(char letter) {
  for (int kind = 0; kind < kActionKinds; ++kind) {
    if (row_of(static_cast<ActionKind>(kind)).letter == letter) return static_cast<ActionKind>(kind);
  }
  return std::nullopt;
}

/// One line of a text, word by word, and action by action.
class Line {
 public:
  Line(std::string_view text, const std::string& file, int number)
      : text_(text.substr(0, text.find('#'))), file_(file), number_(number) {}

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
  /// As much of the next word as errors quote.
  std::string_view ahead() const {
    const std::string_view begin = text_.substr(0, kQuoted + 1);
    return begin.substr(0, begin.find_first_of(" \t\r"));
  }
  std::string_view rest() {
    if (at_end()) return {};
    while (text_.back() == ' ' || text_.back() == '\t' || text_.back() == '\r') text_.remove_suffix(1);
    return std::exchange(text_, {});
  }
  [[noreturn]] void refuse(std::string_view why) const { parallel::refuse(file_, number_, why); }
  [[noreturn]] void refuse(std::string_view word, const std::string& why) const {
    refuse("'" + excerpt(word, kQuoted) + "': " + why);
  }

  /// A number, if one begins here.
  std::optional<int> number(int most = kMost) {
    int value = 0;
    const auto read = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (read.ec == std::errc::result_out_of_range || value > most) refuse("a number is too large");
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
  const std::string& file_;
  const int number_;
};

class Reader {
 public:
  Reader(std::string_view text, const std::string& file)
      : text_(text), file_(file), most_(most_actions(text.size())), left_(most_) {
    schedule_.name = file;
  }

  Schedule schedule() {
    for (std::size_t begin = 0; begin < text_.size(); ++number_) {
      const std::size_t end = std::min(text_.find('\n', begin), text_.size());
      Line line(text_.substr(begin, end - begin), file_, number_);
      read(line);
      begin = end + 1;
    }
    number_ = std::max(1, number_ - 1);  // of the last line
    check_sizes();
    // One pair is every stage's.
    std::vector<Rings>& rings = schedule_.rings;
    if (rings.size() == 1) rings.resize(static_cast<std::size_t>(schedule_.stages), rings[0]);
    try {
      verify(schedule_);
    } catch (const ScheduleError& e) {
      refuse(file_, line_of(e), e.what());
    }
    return std::move(schedule_);
  }

 private:
  void read(Line& line) {
    if (line.at_end()) return;
    const std::string_view word = line.word();
    if (word == "schedule") {
      if (!line.at_end()) schedule_.name = line.rest();
    } else if (word == "sum") {
      schedule_.sum = tree(line);
      sum_line_ = number_;
    } else if (word == "tied") {
      tied(line);
    } else if (word == "free" || word == "rings") {
      if (word == "free") schedule_.fixed_order = false;
      rings_line_ = number_;
      while (!line.at_end()) {
        const std::optional<int> saved = line.number(kMostSlots);
        const bool comma = line.skip(',');
        const std::optional<int> kept = line.number(kMostSlots);
        if (!saved || !comma || !kept) line.refuse("'" + std::string(word) + "' has pairs of slots behind it, as 4,7");
        schedule_.rings.push_back({*saved, *kept});
      }
    } else if (word[0] == 's' || word[0] == 'd') {
      Line of_word(word.substr(1), file_, number_);
      const std::optional<int> number = of_word.number();
      if (!number || !of_word.at_end()) line.refuse(word, kLines);
      if (word[0] == 'd' && *number != schedule_.devices()) {
        line.refuse(word, "the next device is d" + std::to_string(schedule_.devices()));
      }
      device_lines_.push_back(number_);
      schedule_.per_device.emplace_back();
      while (!line.at_end()) actions(line, word[0] == 's' ? number : std::nullopt);
    } else {
      line.refuse(word, kLines);
    }
  }

  SumTree tree(Line& line) {
    try {
      return sum_tree(line.rest());
    } catch (const std::invalid_argument& e) {
      line.refuse(e.what());
    }
  }

  void tied(Line& line) {
    TiedWeight& tied = schedule_.tied.emplace_back();
    tied_lines_.push_back(number_);
    tied.name = line.word();
    while (!line.at_end() && !line.starts_with('(')) {
      const std::optional<int> stage = line.number();
      if (!stage) line.refuse("a tied weight is 'tied', its name, its stages, and perhaps a tree of its uses");
      tied.stages.push_back(*stage);
    }
    if (!line.at_end()) tied.uses = tree(line);
  }

  /// The next one or several actions. `stage`: of a line with one stage.
  void actions(Line& line, std::optional<int> stage) {
    const std::string_view word = line.ahead();
    const auto refuse_word = [&] {
      line.refuse(word, std::string("an action is F, B, I, W, R or U and a number") +
                            (stage ? "" : ", as F0.3: stage and microbatch"));
    };
    const std::optional<ActionKind> kind = kind_of(word.front());
    if (!kind) refuse_word();
    line.skip(word.front());
    const bool step = row_of(*kind).of_stage;
    std::optional<int> first = line.number();
    if (step && !first) first = stage;
    if (!first) refuse_word();
    int of_stage = stage.value_or(*first);
    int begin = 0, last = 0;
    if (step) {
      of_stage = *first;
    } else {
      if (!stage) {
        if (!line.skip('.')) refuse_word();
        first = line.number();
        if (!first) refuse_word();
      }
      begin = last = *first;
      if (line.skip('-')) {
        const std::optional<int> end = line.number();
        if (!end || *end < begin) line.refuse(word, "a range counts up, as F0-3");
        last = *end;
      }
    }
    const int count = last - begin + 1;
    const auto within = [&](int wanted, std::size_t there, std::size_t most, const char* what) {
      if (static_cast<std::size_t>(wanted) > there) line.refuse(word, at_most(most, what));
    };
    // A stage has an F and a B of each microbatch, or more.
    within(of_stage + 1, most_ / 2, most_ / 2, "stages");
    within(last + 1, most_ / 2, most_ / 2, "microbatches");
    within(count, left_, most_, "actions");
    left_ -= static_cast<std::size_t>(count);
    for (int k = begin; k <= last; ++k) schedule_.per_device.back().push_back({*kind, of_stage, k});
    schedule_.stages = std::max(schedule_.stages, of_stage + 1);
    schedule_.microbatches = std::max(schedule_.microbatches, last + 1);
  }

  std::string at_most(std::size_t most, const char* what) const {
    return "a text of " + std::to_string(text_.size()) + " bytes may have at most " + std::to_string(most) + " " + what;
  }

  /// What verify() makes tables of.
  void check_sizes() const {
    const auto stages = static_cast<std::size_t>(schedule_.stages);
    const auto microbatches = static_cast<std::size_t>(schedule_.microbatches);
    // A bit for each action that there could be is little: so the prover may say what is lacking, up to here.
    if (stages > 0 && microbatches > 8 * most_ / stages) {
      refuse(file_, number_,
             std::to_string(stages) + " stages and " + std::to_string(microbatches) +
                 " microbatches: " + at_most(most_, "actions"));
    }
    std::size_t uses = 0;
    for (std::size_t t = 0; t < schedule_.tied.size(); ++t) {
      uses += schedule_.tied[t].stages.size() * microbatches;
      if (uses > most_) refuse(file_, tied_lines_[t], at_most(most_, "uses of tied weights in all its microbatches"));
    }
  }

  int line_of(const ScheduleError& error) const {
    switch (error.part()) {
      case SchedulePart::list:
        return device_lines_[static_cast<std::size_t>(error.device())];
      case SchedulePart::sum:
        return sum_line_;
      case SchedulePart::rings:
        return rings_line_;
      case SchedulePart::tied:
        return tied_lines_[static_cast<std::size_t>(error.tied())];
      case SchedulePart::whole:
        break;
    }
    return number_;
  }

  const std::string_view text_;
  const std::string& file_;
  const std::size_t most_;
  std::size_t left_;  // of the actions
  Schedule schedule_;
  int number_ = 1, sum_line_ = 0, rings_line_ = 0;
  std::vector<int> device_lines_, tied_lines_;
};

/// One line a device.
std::string lists_to_text(const Schedule& schedule, bool ranges) {
  std::string text;
  for (std::size_t d = 0; d < schedule.per_device.size(); ++d) {
    const auto& list = schedule.per_device[d];
    const bool one_stage =
        !list.empty() && std::ranges::all_of(list, [&](const Action& a) { return a.stage == list.front().stage; });
    text += one_stage ? "s" + std::to_string(list.front().stage) : "d" + std::to_string(d);
    for (std::size_t i = 0; i < list.size();) {
      const Action& first = list[i];
      std::size_t run = 1;
      while (ranges && i + run < list.size() && list[i + run].kind == first.kind &&
             list[i + run].stage == first.stage &&
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
  return text;
}

/// What a text is bounded by: its actions, or uses of its tied weights where these are more.
std::size_t listed(const Schedule& schedule) {
  std::size_t actions = 0, uses = 0;
  for (const auto& list : schedule.per_device) actions += list.size();
  for (const TiedWeight& tied : schedule.tied) uses += tied.stages.size();
  return std::max(actions, uses * static_cast<std::size_t>(std::max(0, schedule.microbatches)));
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
  std::string lists = lists_to_text(schedule, true);
  if (listed(schedule) > most_actions(lists.size())) lists = lists_to_text(schedule, false);
  text += lists;
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

Schedule parse_schedule(std::string_view text, const std::string& file) { return Reader(text, file).schedule(); }

namespace {
constexpr std::size_t kLargestFile = std::size_t{256} << 20;
}

Schedule load_schedule(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": " + std::strerror(errno));
  std::string text;
  for (std::string block(std::size_t{1} << 16, '\0'); in.good() && text.size() <= kLargestFile;) {
    in.read(block.data(), static_cast<std::streamsize>(block.size()));
    text.append(block, 0, static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) throw std::runtime_error(path + ": " + std::strerror(errno));
  if (text.size() > kLargestFile) throw std::runtime_error(path + ": larger than 256 MiB: this is no schedule");
  return parse_schedule(text, path);
}

}  // namespace sluice::parallel
