// Arrays in files: .npy, .npz and .safetensors. Errors name the function and the line of the call. A path is a string;
// a std::filesystem::path becomes one by itself.
//
// What saves writes a file whole or not at all: an interrupted program or a full disk leaves the old file as it was.
// When the call is over the new file is on the disk under its name, also after a power cut. A file that is replaced
// keeps its mode, and its owner and group where the process may give a file away; access control lists are not kept,
// and other hard links to it keep the old content. A kill may leave `NAME.sluice-tmp-0`, which the next save removes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <source_location>
#include <span>
#include <string>

#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// Writes the elements as .npy; waits for them. Throws FormatError where the file cannot be written, Error where the
/// array is poisoned. Blocking.
void save_npy(const std::string& path, const NDArray& x, std::source_location where = std::source_location::current());
/// Reads a .npy file into an array on the device of the thread's scope. Throws FormatError. Blocking.
NDArray read_npy(const std::string& path, std::source_location where = std::source_location::current());

/// Writes named arrays as .npz; `compress` packs them. Waits; throws as save_npy. Blocking.
struct NpzOptions {
  bool compress = false;
};
void save_npz(const std::string& path, const std::map<std::string, NDArray>& arrays, const NpzOptions& options = {},
              std::source_location where = std::source_location::current());
/// Reads a .npz file, stored or packed, onto the device of the thread's scope: at most 4 GiB when unpacked. (load_npz()
/// in ndarray/formats/npz.h has that as an option.) Throws FormatError. Blocking.
std::map<std::string, NDArray> read_npz(const std::string& path,
                                        std::source_location where = std::source_location::current());

/// Writes named arrays and text as .safetensors, whole or not at all. Waits; throws as save_npy. Blocking.
void save_arrays(const std::string& path, const std::map<std::string, NDArray>& arrays,
                 const std::map<std::string, std::string>& metadata = {},
                 std::source_location where = std::source_location::current());
struct LoadedArrays {
  std::map<std::string, NDArray> arrays;
  std::map<std::string, std::string> metadata;
  /// Tensors of dtypes that Sluice lacks (I16 U16 U32 U64 F8_E4M3 C64 ...), which were not read: name to dtype.
  std::map<std::string, std::string> refused{};
};
/// Reads a .safetensors file onto the device of the thread's scope. Throws FormatError. Blocking.
LoadedArrays load_arrays(const std::string& path, std::source_location where = std::source_location::current());

/// A .safetensors file whose arrays are the file itself, mapped into memory: opening it reads the header alone, and an
/// array's pages come from the disk when an op touches them. Any number of threads may use one object.
///
/// The arrays are read-only buffers: the first write to one gives it memory of its own (with a copy, unless all of it
/// is overwritten) and never reaches the file. The mapping goes with this object and the last array that shows it.
///
/// While it is mapped the file must not be changed in place. If it is overwritten, the arrays' values may change or
/// not, at any time (a bool may then be neither true nor false, which no op can bear); if it is cut, or the disk fails,
/// an op that touches what is gone ends the process with SIGBUS. Replacing the file by rename is safe, and is what
/// save_arrays(), nn::save() and most download tools do. Where that is not sure, use load_arrays().
class MappedArrays {
 public:
  struct Info {
    std::string dtype;  ///< the format's name, such as "F32" or "F8_E4M3"
    Dims shape;
    bool known = true;  ///< false: Sluice has no such dtype, and array() refuses it
  };
  /// Maps the file and checks its header. Throws FormatError as load_arrays() does. Blocking.
  explicit MappedArrays(const std::string& path, std::source_location where = std::source_location::current());
  ~MappedArrays();
  MappedArrays(MappedArrays&&) noexcept;
  MappedArrays& operator=(MappedArrays&&) noexcept;

  const std::map<std::string, Info>& tensors() const;
  const std::map<std::string, std::string>& metadata() const;
  /// The array of that name, on the device of the thread's scope: the mapped memory itself where that is the host and
  /// the elements are aligned in the file (files that Sluice writes are), else a copy. Throws FormatError, one line,
  /// where there is no such tensor, or it is of a dtype that Sluice lacks, or a bool in it is neither 0 nor 1 (bools
  /// are read to the end here; no other dtype is).
  NDArray array(const std::string& name, std::source_location where = std::source_location::current()) const;
  /// Bytes of arrays that array() had to copy on the host, so far.
  std::uint64_t copied_bytes() const;
  /// The file's bytes in memory. An array that was not copied lies in there.
  std::span<const std::byte> mapping() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
