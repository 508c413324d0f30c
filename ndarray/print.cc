// Arrays as text, laid out as NumPy lays them out: 8 digits, 75 columns, "..." above 1,000 elements.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <ostream>
#include <type_traits>

#include "sluice/ndarray/half.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/ndarray/owner.h"

namespace sluice {
namespace {

constexpr std::int64_t kSummaryAbove = 1000;
constexpr std::int64_t kEdge = 3;
constexpr std::size_t kLineWidth = 75;
constexpr int kDigits = 8;

template <class T>
double as_double(T value) {
  return static_cast<double>(static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(value));
}

/// A finite number in decimal: [-]d.ddd x 10^exponent.
struct Decimal {
  bool negative = false;
  std::string digits;  ///< at least one, the first before the point
  int exponent = 0;
};

/// From what to_chars writes in scientific form.
Decimal parse_scientific(const char* begin, const char* end) {
  Decimal result;
  if (*begin == '-') {
    result.negative = true;
    ++begin;
  }
  const char* const e = std::find(begin, end, 'e');
  std::copy_if(begin, e, std::back_inserter(result.digits), [](char c) { return c != '.'; });
  std::from_chars(e[1] == '+' ? e + 2 : e + 1, end, result.exponent);
  return result;
}

template <class T, class... Precision>
Decimal to_decimal(T value, Precision... precision) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific, precision...).ptr;
  return parse_scientific(text, end);
}

/// The fewest digits that name the value among all of its type.
Decimal shortest(float value) { return to_decimal(value); }
Decimal shortest(double value) { return to_decimal(value); }
template <class Half>
Decimal shortest(Half value) {
  const auto exact = static_cast<double>(static_cast<float>(value));
  char text[64];
  for (int precision = 0;; ++precision) {
    const auto end = std::to_chars(text, text + sizeof text, exact, std::chars_format::scientific, precision).ptr;
    float back = 0;
    std::from_chars(text, end, back);
    if (precision == 9 || static_cast<float>(Half(back)) == static_cast<float>(value)) {
      return parse_scientific(text, end);
    }
  }
}

/// A number's text on both sides of its point.
struct Halves {
  std::string left, right, exponent;
};

/// The sign and digits of d as they stand before and after the point, and no zeros at the end.
Halves around_point(const Decimal& d) {
  Halves text{d.negative ? "-" : "", "", ""};
  std::string digits = d.digits;
  if (d.exponent < 0) digits.insert(0, static_cast<std::size_t>(-d.exponent), '0');
  const auto whole = static_cast<std::size_t>(std::max(d.exponent, 0)) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  text.left += digits.substr(0, whole);
  text.right = digits.substr(whole);
  text.right.erase(text.right.find_last_not_of('0') + 1);
  return text;
}

/// Without exponent: the whole part is exact, and at most kDigits digits stand after the point. "3.": nothing on the
/// right.
template <class T>
Halves fixed(T value) {
  const Decimal d = shortest(value);
  const int fraction = static_cast<int>(d.digits.size()) - 1 - d.exponent;
  if (fraction >= 0 && fraction <= kDigits) return around_point(d);
  char text[512];
  const char* const end = std::to_chars(text, text + sizeof text, as_double(value), std::chars_format::fixed,
                                        std::clamp(fraction, 0, kDigits))
                              .ptr;
  const char* const point = std::find(static_cast<const char*>(text), end, '.');
  Halves rounded;
  rounded.left.assign(static_cast<const char*>(text), point);
  rounded.right.assign(point == end ? end : point + 1, end);
  rounded.right.erase(rounded.right.find_last_not_of('0') + 1);
  return rounded;
}

/// With exponent: "1", "5", "-07".
Halves scientific(const Decimal& d) {
  Halves text{(d.negative ? "-" : "") + d.digits.substr(0, 1), d.digits.substr(1), ""};
  const std::string size = std::to_string(std::abs(d.exponent));
  text.exponent = (d.exponent < 0 ? "-" : "+") + std::string(size.size() < 2 ? 1 : 0, '0') + size;
  return text;
}

/// The digits after the first that name the value, at most kDigits.
template <class T>
int precision_of(T value) {
  Decimal d = shortest(value);
  if (d.digits.size() > kDigits + 1) d = to_decimal(as_double(value), kDigits);
  const std::size_t last = d.digits.find_last_not_of('0');
  return last == std::string::npos ? 0 : static_cast<int>(last);
}

std::string padded(const std::string& text, std::size_t left_width) {
  return std::string(left_width > text.size() ? left_width - text.size() : 0, ' ') + text;
}

template <class T>
std::string word(T value) {
  const double v = as_double(value);
  return std::isnan(v) ? "nan" : v < 0 ? "-inf" : "inf";
}

/// Whether the numbers are shown with exponents. The quotient is one of their dtype, as NumPy's is.
template <class T>
bool wants_exponents(const std::vector<T>& values) {
  double largest = 0, smallest = std::numeric_limits<double>::infinity();
  for (const T& value : values) {
    const double v = std::abs(as_double(value));
    if (!std::isfinite(v) || v == 0) continue;
    largest = std::max(largest, v);
    smallest = std::min(smallest, v);
  }
  if (largest == 0) return false;
  double quotient = largest / smallest;
  if constexpr (!std::is_same_v<T, double>) quotient = as_double(static_cast<T>(static_cast<float>(quotient)));
  return largest >= 1e8 || smallest < 1e-4 || quotient > 1000.;
}

/// Texts of equal width for the elements that will be shown.
template <class T>
std::vector<std::string> format_reals(const std::vector<T>& values) {
  const bool exponents = wants_exponents(values);
  // With exponents all show as many digits, which are exact beyond those that name a value.
  int precision = 0;
  for (const T& v : values) {
    if (exponents && std::isfinite(as_double(v))) precision = std::max(precision, precision_of(v));
  }
  std::vector<Halves> parts;
  std::size_t left = 0, right = 0, exponent = 0;
  bool nonfinite = false, negative_infinity = false;
  for (const T& v : values) {
    const bool finite = std::isfinite(as_double(v));
    parts.push_back(!finite ? Halves{} : exponents ? scientific(to_decimal(as_double(v), precision)) : fixed(v));
    left = std::max(left, parts.back().left.size());
    right = std::max(right, parts.back().right.size());
    exponent = std::max(exponent, parts.back().exponent.size());
    nonfinite = nonfinite || !finite;
    negative_infinity = negative_infinity || (!finite && as_double(v) < 0);
  }
  const std::size_t tail = right + (exponents ? exponent + 1 : 0);  // with the "e"
  if (nonfinite) {
    const std::size_t longest = negative_infinity ? 4 : 3;
    if (longest > tail + 1) left = std::max(left, longest - tail - 1);
  }
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Halves& text = parts[i];
    if (!std::isfinite(as_double(values[i]))) {
      texts.push_back(padded(word(values[i]), left + 1 + tail));
      continue;
    }
    if (exponents) {
      text.right.append("e").append(text.exponent.substr(0, 1));  // exponents are of equal length too
      text.right.append(exponent - text.exponent.size(), '0').append(text.exponent.substr(1));
    }
    texts.push_back(padded(text.left, left) + '.' + text.right + std::string(tail - text.right.size(), ' '));
  }
  return texts;
}

std::vector<std::string> aligned(std::vector<std::string> texts) {
  std::size_t width = 0;
  for (const auto& t : texts) width = std::max(width, t.size());
  for (auto& t : texts) t = padded(t, width);
  return texts;
}

template <class T>
std::vector<T> load_all(const std::vector<std::byte>& bytes, const std::vector<std::int64_t>& which) {
  std::vector<T> values;
  for (std::int64_t i : which) {
    T value;
    std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    values.push_back(value);
  }
  return values;
}

template <class T>
std::vector<std::string> format_integers(const std::vector<std::byte>& bytes, const std::vector<std::int64_t>& which) {
  std::vector<std::string> texts;
  for (T v : load_all<T>(bytes, which)) texts.push_back(std::to_string(v));
  return aligned(std::move(texts));
}

std::vector<std::string> format_all(DType dtype, const std::vector<std::byte>& bytes,
                                    const std::vector<std::int64_t>& which, bool single = false) {
  switch (dtype) {
    case DType::f32:
      return format_reals(load_all<float>(bytes, which));
    case DType::f64:
      return format_reals(load_all<double>(bytes, which));
    case DType::f16:
      return format_reals(load_all<Float16>(bytes, which));
    case DType::bf16:
      return format_reals(load_all<BFloat16>(bytes, which));
    case DType::i8:
      return format_integers<std::int8_t>(bytes, which);
    case DType::u8:
      return format_integers<std::uint8_t>(bytes, which);
    case DType::i32:
      return format_integers<std::int32_t>(bytes, which);
    case DType::i64:
      return format_integers<std::int64_t>(bytes, which);
    case DType::boolean:
      break;
  }
  std::vector<std::string> texts;
  const char* const yes = single ? "True" : " True";
  for (std::uint8_t v : load_all<std::uint8_t>(bytes, which)) texts.push_back(v != 0 ? yes : "False");
  return texts;
}

class Printer {
 public:
  Printer(const Dims& shape, bool summarise) : shape_(shape), summarise_(summarise) {}

  /// Row-major indices of the elements shown, in the order of printing.
  std::vector<std::int64_t> shown() const {
    std::vector<std::int64_t> list;
    collect(0, 0, list);
    return list;
  }
  std::string print(const std::vector<std::string>& texts) {
    texts_ = &texts;
    next_ = 0;
    return block(0, " ", kLineWidth);
  }

 private:
  bool cut(int axis) const { return summarise_ && shape_[axis] > 2 * kEdge; }
  void collect(int axis, std::int64_t base, std::vector<std::int64_t>& list) const {
    if (axis == shape_.rank()) {
      list.push_back(base);
      return;
    }
    for (std::int64_t i = 0; i < shape_[axis]; ++i) {
      if (cut(axis) && i == kEdge) i = shape_[axis] - kEdge;
      collect(axis + 1, base * shape_[axis] + i, list);
    }
  }
  std::string block(int axis, const std::string& indent, std::size_t width) {
    if (axis == shape_.rank()) return (*texts_)[next_++];
    const int left = shape_.rank() - axis;
    std::string all, line = indent;
    const auto extend = [&](const std::string& word) {
      if (line.size() + word.size() > width - 1 && line.size() > indent.size()) {
        line.erase(line.find_last_not_of(' ') + 1);
        all += line + "\n";
        line = indent;
      }
      line += word;
    };
    for (std::int64_t i = 0; i < shape_[axis]; ++i) {
      if (cut(axis) && i == kEdge) {
        i = shape_[axis] - kEdge;
        if (left == 1) {
          extend("...");
          line += ' ';
        } else {
          all += indent + "..." + std::string(static_cast<std::size_t>(left - 1), '\n');
        }
      }
      const std::string word = block(axis + 1, indent + ' ', width - 1);
      const bool last = i + 1 == shape_[axis];
      if (left == 1) {
        extend(word);
        if (!last) line += ' ';
      } else {
        all += indent + word;
        if (!last) all.append(static_cast<std::size_t>(left - 1), '\n');
      }
    }
    if (left == 1) all += line;
    return '[' + all.substr(indent.size()) + ']';
  }

  const Dims& shape_;
  bool summarise_;
  const std::vector<std::string>* texts_ = nullptr;
  std::size_t next_ = 0;
};

template <class T>
std::string scalar_text(T value) {
  const double v = as_double(value), size = std::abs(v);
  if (!std::isfinite(v)) return word(value);
  if (size != 0 && (size >= 1e16 || size < 1e-4)) {
    const Halves text = scientific(shortest(value));
    return text.left + (text.right.empty() ? "" : ".") + text.right + "e" + text.exponent;
  }
  const Halves text = around_point(shortest(value));
  return text.left + "." + (text.right.empty() ? "0" : text.right);
}

}  // namespace

std::string NDArray::to_string(Where where) const {
  if (const NDArray value = sluice::detail::value_of(*this); value.defined()) return value.to_string(where);
  in_memory("to_string", where);
  const std::vector<std::byte> all_bytes = to_bytes(where);
  if (rank() == 0) {
    if (dtype() == DType::f32) return scalar_text(load_all<float>(all_bytes, {0})[0]);
    if (dtype() == DType::f64) return scalar_text(load_all<double>(all_bytes, {0})[0]);
    if (dtype() == DType::f16) return scalar_text(load_all<Float16>(all_bytes, {0})[0]);
    if (dtype() == DType::bf16) return scalar_text(load_all<BFloat16>(all_bytes, {0})[0]);
    return format_all(dtype(), all_bytes, {0}, true)[0];
  }
  if (count() == 0) return "[]";
  Printer printer(shape_, count() > kSummaryAbove);
  return printer.print(format_all(dtype(), all_bytes, printer.shown()));
}

std::ostream& operator<<(std::ostream& out, const Operand& x) { return out << x.array.to_string(x.where); }
std::ostream& operator<<(std::ostream& out, const Dims& shape) { return out << to_string(shape); }
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name_of(dtype); }
std::ostream& operator<<(std::ostream& out, Device device) { return out << to_string(device); }

}  // namespace sluice
