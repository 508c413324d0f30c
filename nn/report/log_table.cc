#include "sluice/nn/report/log_table.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "sluice/ndarray/formats/file_io.h"

namespace sluice::nn::detail {
namespace {

/// The lines of a file that end; what a kill has cut off at its end is none.
std::vector<std::string> whole_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    lines.push_back(line);
  }
  if (!file.eof()) throw FormatError(path, "cannot read: " + std::generic_category().message(errno ? errno : EIO));
  return lines;
}

/// Gives the file another name, which nothing has. False where something has it.
bool rename_to_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno == EEXIST) return false;
  const bool knows = errno != EINVAL && errno != ENOSYS;  // not each file system has that call
  if (!knows && std::filesystem::exists(to)) return false;
  if (!knows && std::rename(from.c_str(), to.c_str()) == 0) return true;
  throw FormatError(from, "cannot rename it: " + std::generic_category().message(errno));
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

bool LogTable::is_there() const {
  const auto status = std::filesystem::status(path_);
  if (!std::filesystem::exists(status)) return false;
  if (!std::filesystem::is_regular_file(status)) throw FormatError(path_, "it exists and is not a regular file");
  const AppendFile nobody_writes_it(path_);
  return true;
}

void LogTable::begin() {
  if (is_there()) {
    for (int n = 1; !rename_to_new(path_, path_ + "." + std::to_string(n));) ++n;
  }
  columns_.clear();
  write_anew({header(columns_)});
}

void LogTable::go_on_from(std::int64_t step) {
  std::vector<std::string> lines;
  if (is_there()) lines = whole_lines(path_);
  if (lines.empty()) return begin();
  std::vector<std::string> columns = csv_cells(lines[0]);
  if (columns[0] != "step") throw FormatError(path_, "it is no log: its first column is not \"step\"");
  columns.erase(columns.begin());
  std::vector<std::string> kept{header(columns)};
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::string first = csv_cells(lines[i])[0];
    std::int64_t at = 0;
    const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), at);
    if (error != std::errc() || end != first.data() + first.size()) {
      throw FormatError(path_, "line " + std::to_string(i + 1) + " has no step: it is no row of a log");
    }
    if (at <= step) kept.push_back(lines[i]);
  }
  write_anew(kept);
  columns_ = std::move(columns);
}

void LogTable::add(std::int64_t step, const Cells& cells) {
  const auto is_column = [this](const auto& cell) { return std::ranges::find(columns_, cell.first) != columns_.end(); };
  std::exception_ptr failed;  // what other rows could not be written for is no reason to lose this one
  if (!std::ranges::all_of(cells, is_column)) {
    try {
      write();
    } catch (const FormatError&) {
      failed = std::current_exception();
    }
    std::vector<std::string> columns = columns_;
    for (const auto& cell : cells) {
      if (!is_column(cell)) columns.emplace_back(cell.first);
    }
    std::vector<std::string> lines = whole_lines(path_);
    for (std::string& line : lines) line += std::string(columns.size() - columns_.size(), ',');
    if (lines.empty()) lines.emplace_back();
    lines[0] = header(columns);
    write_anew(lines);
    columns_ = std::move(columns);
  }
  std::string row = std::to_string(step);
  for (const std::string& name : columns_) {
    row += ',';
    const auto cell = std::ranges::find(cells, std::string_view(name), &Cells::value_type::first);
    if (cell != cells.end()) row += cell->second;
  }
  row += '\n';
  added_ += row;
  if (failed) std::rethrow_exception(failed);
}

void LogTable::write() {
  const std::string rows = std::exchange(added_, {});
  if (rows.empty()) return;
  if (!file_) file_ = std::make_shared<AppendFile>(path_);
  file_->put(rows);
}

std::string LogTable::header(const std::vector<std::string>& columns) {
  std::string line = "step";
  for (const std::string& name : columns) line += "," + csv_text(name);
  return line;
}

/// Whole or not at all, whatever happens meanwhile.
void LogTable::write_anew(const std::vector<std::string>& lines) {
  formats::OutputFile whole(path_);
  for (const std::string& line : lines) whole.write(line + "\n");
  whole.commit();
  file_ = std::make_shared<AppendFile>(path_);
}

}  // namespace sluice::nn::detail
