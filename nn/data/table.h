// Tables: data sets in host memory, as columns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <source_location>
#include <string>

#include "sluice/ndarray/formats/host_tensor.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice::nn {

/// Two columns of one length: row i is sample i and what belongs to it (a label, a target). Arrays of cpu(0), from
/// anywhere: read_npy, read_npz, from, or as here.
struct Table {
  NDArray x, y;
};
struct Split {
  Table train, test;
};

/// An array over the bytes of a HostTensor (IDX files), which are not copied.
NDArray column(HostTensor tensor);

/// Rows in an order that the seed decides: the first `test_rows` of them are the test table. Copies. Throws ArrayError
/// where the columns differ in length, or there are fewer rows.
Split split(const Table& table, std::int64_t test_rows, std::uint64_t seed,
            std::source_location where = std::source_location::current());

/// Fashion-MNIST from its four IDX files: x is u8, (n, 28, 28), y is u8, (n,), ten classes. Blocks. Throws FormatError
/// as load_fashion_mnist (nn/fashion_mnist.h).
Split fashion_mnist(const std::filesystem::path& directory = "/usr/share/datasets/fashion-mnist",
                    std::source_location where = std::source_location::current());

/// The bytes of a text file, or of all files of a folder in the order of their names, as u8, (n,). Blocks. Throws
/// FormatError where nothing can be read, or there is nothing.
NDArray read_tokens(const std::filesystem::path& path, std::source_location where = std::source_location::current());

}  // namespace sluice::nn
