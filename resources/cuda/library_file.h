// Where the CUDA backend's file is looked for.
#pragma once

#include <string>

namespace sluice::cuda {

/// What is to be loaded: as SLUICE_CUDA_LIBRARY says, else the file beside the program, else a name for the system to
/// look for.
std::string library_file();

/// Whether the file is there, as far as that can be told without loading it: a path is asked for, a name is looked for
/// in the directories of the dynamic linker and in its cache.
bool library_is_there(const std::string& file);

}  // namespace sluice::cuda
