// Tables: data sets in host memory, as columns.
#pragma once

#include <cstdint>
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

/// Where Debian's package dataset-fashion-mnist puts its files.
inline constexpr const char* kFashionMnistDirectory = "/usr/share/datasets/fashion-mnist";

/// Fashion-MNIST, grey images in ten classes: x is u8, (n, 28, 28), y is u8, (n,); 60,000 and 10,000 rows. Reads
/// {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] of a directory. Any number of images is taken, at least one, so
/// that a part of the data set can stand for all of it. Blocks. Throws FormatError as load_idx does, and where a file's
/// dtype, rank or image size is another, labels and images differ in number, or a label is above 9.
Split fashion_mnist(const std::string& directory = kFashionMnistDirectory,
                    std::source_location where = std::source_location::current());

/// CIFAR-10, coloured pictures in ten classes: x is u8, (n, 3, 32, 32), y is u8, (n,); 50,000 and 10,000 rows. Reads
/// the "binary version": data_batch_1.bin to data_batch_5.bin, one behind the other, and test_batch.bin of a directory.
/// Each file may hold any number of records, at least one. Blocks. Throws FormatError, which names the file and the
/// record, where a file is missing, is cut or has a label above 9.
Split cifar10(const std::string& directory, std::source_location where = std::source_location::current());
/// CIFAR-100 likewise, from train.bin and test.bin: y is the fine label, 0 to 99. The coarse one (0 to 19) is checked.
Split cifar100(const std::string& directory, std::source_location where = std::source_location::current());

/// The bytes of a text file, or of all files of a folder in the order of their names, as u8, (n,). Blocks. Throws
/// FormatError where nothing can be read, or there is nothing.
NDArray read_tokens(const std::string& path, std::source_location where = std::source_location::current());

}  // namespace sluice::nn
