// HostTensor: an array's bytes in plain host memory, as file formats read and write them; and the error they throw.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"

namespace sluice {

/// A file that cannot be read or written as asked. what() is one line: the function that the program called, the line
/// of the call, the file, what was found, what was wanted.
class FormatError : public std::runtime_error {
 public:
  /// "[load_npy] main.cc:41: PATH: MESSAGE", and outside of the library's functions "PATH: MESSAGE". Control characters
  /// are replaced, so that it stays one line.
  FormatError(const std::string& path, std::string_view message);
};

/// A row-major array in host memory, without engine or views. A value: copies copy the bytes. Threads may read one
/// together; whoever writes needs it alone. f16 and bf16 elements are reached as `bytes` only.
struct HostTensor {
  DType dtype = DType::f32;
  Dims shape;
  std::vector<std::byte> bytes;  ///< count() x size_of(dtype), aligned for every dtype

  /// The number of elements; 1 for rank 0.
  std::int64_t count() const { return shape.count(); }

  /// The elements. Throws std::invalid_argument where T is not the dtype's type, or `bytes` does not fit the shape.
  template <class T>
  std::span<T> as() {
    check(dtype_of<std::remove_const_t<T>>);
    return {reinterpret_cast<T*>(bytes.data()), static_cast<std::size_t>(count())};
  }
  template <class T>
  std::span<const T> as() const {
    check(dtype_of<std::remove_const_t<T>>);
    return {reinterpret_cast<const T*>(bytes.data()), static_cast<std::size_t>(count())};
  }

 private:
  void check(DType asked) const {
    if (asked != dtype) {
      throw std::invalid_argument("HostTensor of " + std::string(name_of(dtype)) + " asked for its elements as " +
                                  std::string(name_of(asked)));
    }
    if (bytes.size() != static_cast<std::size_t>(count()) * size_of(dtype)) {
      throw std::invalid_argument("HostTensor of shape " + to_string(shape) + " and dtype " +
                                  std::string(name_of(dtype)) + " holds " + std::to_string(bytes.size()) + " bytes");
    }
  }
};

}  // namespace sluice
