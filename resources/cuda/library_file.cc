#include "sluice/resources/cuda/library_file.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>

namespace sluice::cuda {
namespace {

bool readable(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

/// The directories in which a name is looked for that this part of the program loads: LD_LIBRARY_PATH, its own RUNPATH,
/// and the system's.
bool in_directories(const std::string& name) {
  Dl_info here{};
  if (!dladdr(reinterpret_cast<const void*>(&library_is_there), &here)) return false;
  void* self = here.dli_fname ? dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  if (!self) self = dlopen(nullptr, RTLD_LAZY);
  Dl_serinfo size{};
  bool found = false;
  if (self && dlinfo(self, RTLD_DI_SERINFOSIZE, &size) == 0) {
    const auto memory = std::make_unique<std::byte[]>(size.dls_size);
    auto* const directories = new (memory.get()) Dl_serinfo(size);
    if (dlinfo(self, RTLD_DI_SERINFO, directories) == 0) {
      for (unsigned i = 0; i < directories->dls_cnt && !found; ++i) {
        found = readable(std::string(directories->dls_serpath[i].dls_name) + "/" + name);
      }
    }
  }
  if (self) dlclose(self);
  return found;
}

/// The dynamic linker's cache holds the paths of all libraries that it knows, as texts that end with a zero byte.
bool in_cache(const std::string& name) {
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  const std::string cache{std::istreambuf_iterator<char>(file), {}};
  const std::string end = "/" + name + '\0';
  for (std::size_t at = cache.find(end); at != std::string::npos; at = cache.find(end, at + 1)) {
    const std::size_t begin = cache.rfind('\0', at) + 1;
    if (readable(cache.substr(begin, at + end.size() - 1 - begin))) return true;
  }
  return false;
}

}  // namespace

std::string library_file() {
  if (const char* const named = std::getenv("SLUICE_CUDA_LIBRARY")) return named;
  const std::string name = "libsluice_cuda.so";
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  if (length > 0 && length < static_cast<ssize_t>(sizeof program)) {
    const std::string path(program, static_cast<std::size_t>(length));
    const std::string beside = path.substr(0, path.rfind('/') + 1) + name;
    if (readable(beside)) return beside;
  }
  return name;
}

bool library_is_there(const std::string& file) {
  if (file.find('/') != std::string::npos) return readable(file);
  return in_directories(file) || in_cache(file);
}

}  // namespace sluice::cuda
