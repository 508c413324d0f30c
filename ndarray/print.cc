// Arrays as text, laid out as NumPy lays them out: 8 digits, 75 columns, "..." above 1,000 elements.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>

#include "sluice/ndarray/half.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice {
namespace {

constexpr std::int64_t kSummaryAbove = 1000;
constexpr std::int64_t kEdge = 3;
constexpr std::size_t kLineWidth = 75;
constexpr int kDigits = 8;

template <class T>
std::string digits(T value, std::chars_format format, int precision = -1) {
  char text[512];
  const auto end = precision < 0 ? std::to_chars(text, text + sizeof text, value, format).ptr
                                 : std::to_chars(text, text + sizeof text, value, format, precision).ptr;
  return {text, end};
}

/// "12.5", "3.": the shortest decimal that names the value, at most kDigits after the point.
template <class T>
std::string fixed(T value) {
  std::string text = digits(value, std::chars_format::fixed);
  const std::size_t point = text.find('.');
  if (point == std::string::npos) return text + '.';
  if (text.size() - point - 1 <= kDigits) return text;
  text = digits(value, std::chars_format::fixed, kDigits);
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

/// Mantissa and exponent of the shortest scientific form: "1.5", "e-07".
template <class T>
std::pair<std::string, std::string> scientific(T value) {
  std::string text = digits(value, std::chars_format::scientific);
  std::size_t e = text.find('e');
  if (e > kDigits + 3) {
    text = digits(value, std::chars_format::scientific, kDigits);
    e = text.find('e');
    const std::size_t last = text.find_last_not_of('0', e - 1);
    text.erase(last + 1, e - last - 1);
    e = text.find('e');
  }
  std::string mantissa = text.substr(0, e);
  if (mantissa.find('.') == std::string::npos) mantissa += '.';
  return {mantissa, text.substr(e)};
}

std::string padded(const std::string& text, std::size_t left_width) {
  return std::string(left_width > text.size() ? left_width - text.size() : 0, ' ') + text;
}

/// Texts of equal width for the elements that will be shown.
template <class T>
std::vector<std::string> format_reals(const std::vector<T>& values) {
  T largest = 0, smallest = std::numeric_limits<T>::infinity();
  for (T v : values) {
    if (!std::isfinite(v) || v == 0) continue;
    largest = std::max(largest, std::abs(v));
    smallest = std::min(smallest, std::abs(v));
  }
  const bool any = largest > 0;
  const bool exponents = any && (largest >= T(1e8) || smallest < T(1e-4) ||
                                 static_cast<double>(largest) / static_cast<double>(smallest) > 1000.0);
  std::vector<std::string> left, right;
  std::size_t mantissa = 0;
  for (T v : values) {
    if (!std::isfinite(v)) {
      left.push_back(std::isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
      right.emplace_back();
    } else if (exponents) {
      auto [m, e] = scientific(v);
      const std::size_t point = m.find('.');
      mantissa = std::max(mantissa, m.size() - point - 1);
      left.push_back(m);
      right.push_back(e);
    } else {
      const std::string text = fixed(v);
      const std::size_t point = text.find('.');
      left.push_back(text.substr(0, point + 1));
      right.push_back(text.substr(point + 1));
    }
  }
  std::size_t width = 0, tail = 0;
  if (exponents) {
    for (std::size_t i = 0; i < left.size(); ++i) {
      const std::size_t point = left[i].find('.');
      if (point == std::string::npos) continue;
      left[i].append(mantissa - (left[i].size() - point - 1), '0');
      left[i] += right[i];
      right[i].clear();
    }
  }
  for (std::size_t i = 0; i < left.size(); ++i) tail = std::max(tail, right[i].size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    const bool word = !std::isfinite(values[i]);
    if (word && !exponents) {  // stands over the whole number, not before the point
      width = std::max(width, left[i].size() > tail ? left[i].size() - tail : 0);
    } else {
      width = std::max(width, left[i].size());
    }
  }
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!std::isfinite(values[i])) {
      texts.push_back(padded(left[i], width + tail));
    } else {
      texts.push_back(padded(left[i], width) + right[i] + std::string(tail - right[i].size(), ' '));
    }
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

template <class Half>
std::vector<float> load_halves(const std::vector<std::byte>& bytes, const std::vector<std::int64_t>& which) {
  std::vector<float> values;
  for (Half h : load_all<Half>(bytes, which)) values.push_back(static_cast<float>(h));
  return values;
}

std::vector<std::string> format_all(DType dtype, const std::vector<std::byte>& bytes,
                                    const std::vector<std::int64_t>& which) {
  switch (dtype) {
    case DType::f32:
      return format_reals(load_all<float>(bytes, which));
    case DType::f64:
      return format_reals(load_all<double>(bytes, which));
    case DType::f16:
      return format_reals(load_halves<Float16>(bytes, which));
    case DType::bf16:
      return format_reals(load_halves<BFloat16>(bytes, which));
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
  for (std::uint8_t v : load_all<std::uint8_t>(bytes, which)) texts.push_back(v != 0 ? "True" : "False");
  return aligned(std::move(texts));
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
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  const T size = std::abs(value);
  if (size != 0 && (size >= T(1e16) || size < T(1e-4))) {
    auto [mantissa, exponent] = scientific(value);
    if (mantissa.back() == '.') mantissa.pop_back();
    return mantissa + exponent;
  }
  std::string text = digits(value, std::chars_format::fixed);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

}  // namespace

std::string NDArray::to_string(Where where) const {
  const std::vector<std::byte> all_bytes = to_bytes(where);
  if (rank() == 0) {
    if (dtype() == DType::f32) return scalar_text(load_all<float>(all_bytes, {0})[0]);
    if (dtype() == DType::f64) return scalar_text(load_all<double>(all_bytes, {0})[0]);
    if (dtype() == DType::f16) return scalar_text(load_halves<Float16>(all_bytes, {0})[0]);
    if (dtype() == DType::bf16) return scalar_text(load_halves<BFloat16>(all_bytes, {0})[0]);
    return format_all(dtype(), all_bytes, {0})[0];
  }
  if (count() == 0) return "[]";
  Printer printer(shape_, count() > kSummaryAbove);
  return printer.print(format_all(dtype(), all_bytes, printer.shown()));
}

std::ostream& operator<<(std::ostream& out, const NDArray& x) { return out << x.to_string(); }

}  // namespace sluice
