// The CSV file of a Log. Internal to nn/report/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/nn/report/append_file.h"

namespace sluice::nn::detail {

/// A file whose first column is "step". For one thread at a time. Throws FormatError.
class LogTable {
 public:
  using Cells = std::vector<std::pair<std::string_view, std::string>>;  ///< a column's name, and the cell's text

  explicit LogTable(std::string path) : path_(std::move(path)) {}

  /// Begins a file; one that is there becomes PATH.1, or .2, .. Not what is no regular file.
  void begin();
  /// Goes on with a file, if there is one, whose rows of later steps are cut off, and so is half a row at its end.
  void go_on_from(std::int64_t step);
  /// A row for write(). Another column than the file's has the whole file written anew.
  void add(std::int64_t step, const Cells& cells);
  /// Writes the added rows to the system: all of them or, where it throws, none. They are not kept for another try.
  void write();
  /// The file as it is now, for sync() on another thread; null: none was begun.
  std::shared_ptr<AppendFile> file() const { return file_; }

 private:
  bool is_there() const;
  void write_anew(const std::vector<std::string>& lines);
  static std::string header(const std::vector<std::string>& columns);

  std::string path_;
  std::vector<std::string> columns_;  ///< without "step"
  std::string added_;                 ///< rows that are not written
  std::shared_ptr<AppendFile> file_;
};

/// A cell as RFC 4180 has it: in quotes where it must be.
std::string csv_text(const std::string& text);
/// The cells of a line.
std::vector<std::string> csv_cells(const std::string& line);

}  // namespace sluice::nn::detail
