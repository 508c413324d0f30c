#include "sluice/nn/report/log_table.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "sluice/ndarray/formats/file_io.h"

namespace sluice::nn::detail {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw FormatError(path, std::string(what) + ": " + std::generic_category().message(errno));
}

/// The lines of a file that end; what a kill has cut off at its end is none.
std::vector<std::string> whole_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot read");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line) && !file.eof();) lines.push_back(line);
  return lines;
}

}  // namespace

std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::vector<std::string> csv_cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[++i];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  return cells;
}

LogTable::~LogTable() {
  if (file_) std::fclose(file_);
}

void LogTable::begin() {
  std::string old = path_;
  for (int n = 1; std::filesystem::exists(old); ++n) old = path_ + "." + std::to_string(n);
  if (old != path_) std::filesystem::rename(path_, old);
  columns_.clear();
  write_anew({header(columns_)});
}

void LogTable::go_on_from(std::int64_t step) {
  std::vector<std::string> lines;
  if (std::filesystem::exists(path_)) lines = whole_lines(path_);
  if (lines.empty()) return begin();
  columns_ = csv_cells(lines[0]);
  if (columns_[0] != "step") throw FormatError(path_, "it is no log: its first column is not \"step\"");
  columns_.erase(columns_.begin());
  const auto later = [&](const std::string& line) {
    std::int64_t at = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), at);
    return error != std::errc() || at > step;
  };
  lines.erase(std::remove_if(lines.begin() + 1, lines.end(), later), lines.end());
  write_anew(lines);
}

void LogTable::add(std::int64_t step, const Cells& cells) {
  std::vector<std::string> columns = columns_;
  for (const auto& [name, text] : cells) {
    if (std::ranges::find(columns, name) == columns.end()) columns.push_back(name);
  }
  if (const std::size_t fresh = columns.size() - columns_.size(); fresh > 0) {
    std::vector<std::string> lines = whole_lines(path_);
    for (std::string& line : lines) line += std::string(fresh, ',');
    if (lines.empty()) lines.emplace_back();
    lines[0] = header(columns);
    write_anew(lines);
    columns_ = std::move(columns);
  }
  std::string line = std::to_string(step);
  for (const std::string& name : columns_) {
    const auto cell = std::ranges::find(cells, name, &std::pair<std::string, std::string>::first);
    line += "," + (cell == cells.end() ? std::string() : cell->second);
  }
  line += "\n";
  if (!file_) open();
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0) {
    fail(path_, "cannot write");
  }
}

std::string LogTable::header(const std::vector<std::string>& columns) {
  std::string line = "step";
  for (const std::string& name : columns) line += "," + csv_text(name);
  return line;
}

void LogTable::open() {
  file_ = std::fopen(path_.c_str(), "ae");
  if (!file_) fail(path_, "cannot write");
}

/// Whole or not at all, whatever happens meanwhile.
void LogTable::write_anew(const std::vector<std::string>& lines) {
  if (file_) std::fclose(std::exchange(file_, nullptr));
  formats::OutputFile whole(path_);
  for (const std::string& line : lines) whole.write(line + "\n");
  whole.commit();
  open();
}

}  // namespace sluice::nn::detail
