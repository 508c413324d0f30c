#include "sluice/ndarray/formats/csv.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <system_error>
#include <type_traits>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/whole_file.h"

namespace sluice {
namespace {

struct Field {
  std::string_view text;  ///< until the next one is read
  std::size_t line = 0, column = 0;
  bool last = false;  ///< of its line
};

class Fields {
 public:
  Fields(std::string_view text, char delimiter, const std::filesystem::path& path)
      : text_(text), delimiter_(delimiter), path_(&path) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = line_begin_ = 3;  // the mark with which some programs begin UTF-8
  }

  bool done() const { return at_ == text_.size(); }
  /// Passes over line ends.
  void skip_empty_lines() {
    while (line_end(at_) > 0) next_line();
  }

  Field next() {
    Field field{{}, line_, at_ - line_begin_ + 1, false};
    std::size_t begin = at_;
    while (begin < text_.size() && is_space(text_[begin])) ++begin;
    if (begin < text_.size() && text_[begin] == '"') {
      at_ = begin + 1;
      field.text = quoted(field);
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      if (!done() && text_[at_] != delimiter_ && line_end(at_) == 0) {
        throw fail({{}, line_, at_ - line_begin_ + 1}, "text behind a closing quote");
      }
    } else {
      while (!done() && text_[at_] != delimiter_ && line_end(at_) == 0) ++at_;
      std::size_t end = at_;
      begin = std::min(begin, end);
      while (end > begin && is_space(text_[end - 1])) --end;
      field.text = text_.substr(begin, end - begin);
    }
    field.last = done() || text_[at_] != delimiter_;
    if (!field.last) {
      ++at_;
    } else if (!done()) {
      next_line();
    }
    return field;
  }

  FormatError fail(const Field& at, const std::string& message) const {
    return {path_->string() + ":" + std::to_string(at.line) + ":" + std::to_string(at.column), message};
  }

 private:
  bool is_space(char c) const { return (c == ' ' || c == '\t') && c != delimiter_; }
  /// The length of the line end that begins there, or 0.
  std::size_t line_end(std::size_t at) const {
    if (at == text_.size() || (text_[at] != '\n' && text_[at] != '\r')) return 0;
    if (text_[at] == '\n') return 1;
    return at + 1 < text_.size() && text_[at + 1] == '\n' ? 2 : 0;
  }
  void next_line() {
    at_ += line_end(at_);
    ++line_;
    line_begin_ = at_;
  }
  std::string_view quoted(const Field& field) {
    unquoted_.clear();
    for (;; ++at_) {
      if (done()) throw fail(field, "a quote that is not closed");
      if (text_[at_] == '"') {
        if (text_.substr(at_, 2) != "\"\"") break;
        ++at_;
      }
      unquoted_.push_back(text_[at_]);
      if (text_[at_] == '\n') {
        ++line_;
        line_begin_ = at_ + 1;
      }
    }
    ++at_;
    return unquoted_;
  }

  std::string_view text_;
  char delimiter_;
  const std::filesystem::path* path_;
  std::size_t at_ = 0, line_ = 1, line_begin_ = 0;
  std::string unquoted_;
};

/// Whether a number that its dtype cannot hold is too small, not too large: by the place of its first digit but 0.
bool too_small(std::string_view text) {
  const std::size_t e = std::min(text.find_first_of("eE"), text.size());
  const std::string_view digits = text.substr(0, e);
  const auto point = static_cast<std::int64_t>(std::min(digits.find('.'), e));
  const auto first = static_cast<std::int64_t>(std::min(digits.find_first_of("123456789"), e));
  std::int64_t exponent = 0;
  if (e < text.size()) {
    text.remove_prefix(e + (text[e + 1] == '+' ? 2 : 1));
    exponent = std::numeric_limits<std::int64_t>::max() / (text.starts_with('-') ? -2 : 2);  // where it is longer
    std::from_chars(text.data(), text.data() + text.size(), exponent);
  }
  return point - first + exponent < 0;
}

template <class T>
std::errc to_number(std::string_view text, T& value) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return std::errc::invalid_argument;
  if constexpr (std::is_floating_point_v<T>) {
    if (error == std::errc::result_out_of_range && too_small(text)) {
      value = text.starts_with('-') ? -T{0} : T{0};
      return {};
    }
  }
  return error;
}

/// So that a number below 0 is one, though beyond u8.
std::errc to_number(std::string_view text, std::uint8_t& value) {
  std::int64_t wide = 0;
  const std::errc error = to_number(text, wide);
  value = static_cast<std::uint8_t>(wide);
  return error == std::errc() && value != wide ? std::errc::result_out_of_range : error;
}

template <class T>
void append(std::vector<std::byte>& bytes, const Fields& fields, const Field& field, DType dtype, bool missing) {
  T value{};
  if (missing && std::is_floating_point_v<T>) {
    value = static_cast<T>(std::numeric_limits<double>::quiet_NaN());
  } else if (const std::errc error = to_number(field.text, value); error != std::errc()) {
    throw fields.fail(field, formats::in_quotes(field.text) +
                                 (missing ? " is missing, which only f64 and f32 can be"
                                  : error == std::errc::result_out_of_range ? " is beyond "
                                                                            : " is no number of ") +
                                 (missing ? "" : std::string(name_of(dtype))));
  }
  const auto* const from = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof(T));
}

void append(HostTensor& column, const Fields& fields, const Field& field, const CsvOptions& o) {
  const bool missing =
      !o.missing.empty() && std::find(o.missing.begin(), o.missing.end(), field.text) != o.missing.end();
  switch (column.dtype) {
    case DType::f64:
      return append<double>(column.bytes, fields, field, column.dtype, missing);
    case DType::f32:
      return append<float>(column.bytes, fields, field, column.dtype, missing);
    case DType::i64:
      return append<std::int64_t>(column.bytes, fields, field, column.dtype, missing);
    case DType::i32:
      return append<std::int32_t>(column.bytes, fields, field, column.dtype, missing);
    default:
      return append<std::uint8_t>(column.bytes, fields, field, column.dtype, missing);
  }
}

void check_dtype(DType dtype) {
  if (dtype != DType::f64 && dtype != DType::f32 && dtype != DType::i64 && dtype != DType::i32 && dtype != DType::u8) {
    formats::refuse_argument("CSV columns of " + std::string(name_of(dtype)) + ": wanted f64, f32, i64, i32 or u8");
  }
}

}  // namespace

CsvColumns parse_csv(std::string_view text, const CsvOptions& o, const std::filesystem::path& path) {
  const std::string_view never = "\"\r\n.+-";
  const auto letter = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (never.find(o.delimiter) != std::string_view::npos || letter(o.delimiter)) {
    formats::refuse_argument("the delimiter " + formats::in_quotes({&o.delimiter, 1}) +
                             ", which numbers or lines need");
  }
  check_dtype(o.dtype);
  Fields fields(text, o.delimiter, path);
  fields.skip_empty_lines();
  if (fields.done()) throw FormatError(path, "holds no line");

  // The first line, which says how many columns there are.
  std::vector<std::string> names;
  std::vector<Field> places;
  Fields first = fields;
  do {
    places.push_back(first.next());
    names.push_back(o.header ? std::string(places.back().text) : std::to_string(names.size()));
  } while (!places.back().last);
  if (o.header) fields = first;
  std::map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!numbers.emplace(names[i], i).second) {
      throw fields.fail(places[i], "two columns are called " + formats::in_quotes(names[i]));
    }
  }
  const auto number_of = [&](const std::string& name) {
    const auto found = numbers.find(name);
    if (found == numbers.end()) throw fields.fail(places[0], "no column " + formats::in_quotes(name));
    return found->second;
  };

  constexpr std::size_t kNone = ~std::size_t{0};
  CsvColumns columns;
  std::vector<std::size_t> goes_to(names.size(), kNone);
  for (const std::string& name : o.only.empty() ? names : o.only) {
    std::size_t& to = goes_to[number_of(name)];
    if (to != kNone) formats::refuse_argument("the column " + formats::in_quotes(name) + " is asked for twice");
    to = columns.size();
    columns.push_back({name, {o.dtype, {0}, {}}});
  }
  for (const auto& [name, dtype] : o.dtypes) {
    check_dtype(dtype);
    const std::size_t to = goes_to[number_of(name)];
    if (to != kNone) columns[to].second.dtype = dtype;
  }

  std::int64_t rows = 0;
  for (;; ++rows) {
    if (names.size() > 1) fields.skip_empty_lines();
    if (fields.done()) break;
    for (std::size_t i = 0;; ++i) {
      const Field field = fields.next();
      if (i >= names.size() || (field.last && i + 1 < names.size())) {
        const std::string wanted = std::to_string(names.size()) + " fields";
        throw fields.fail(field, i < names.size()
                                     ? "the line ends with field " + std::to_string(i + 1) + " of " + wanted
                                     : "the line has more than " + wanted);
      }
      if (goes_to[i] != kNone) append(columns[goes_to[i]].second, fields, field, o);
      if (field.last) break;
    }
  }
  for (auto& [name, column] : columns) column.shape = {rows};
  return columns;
}

CsvColumns load_csv(const std::filesystem::path& path, const CsvOptions& options, std::source_location where) {
  const detail::Called called("load_csv", where);
  const std::vector<std::byte> bytes = formats::whole_file(path);
  return parse_csv({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, options, path);
}

}  // namespace sluice
