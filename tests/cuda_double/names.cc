#include "names.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace cuda_double {
namespace {

/// A file's bytes.
class Mapped {
 public:
  explicit Mapped(const char* path) {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    struct stat about {};
    if (file >= 0 && ::fstat(file, &about) == 0) {
      size_ = static_cast<std::size_t>(about.st_size);
      bytes_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    if (file >= 0) ::close(file);
  }
  ~Mapped() {
    if (bytes_ != MAP_FAILED) ::munmap(bytes_, size_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  const char* at(std::size_t offset, std::size_t bytes) const {
    if (bytes_ == MAP_FAILED || offset > size_ || bytes > size_ - offset) return nullptr;
    return static_cast<const char*>(bytes_) + offset;
  }

 private:
  void* bytes_ = MAP_FAILED;
  std::size_t size_ = 0;
};

/// The symbol at the address, which dladdr does not know where it is local to the file.
std::string symbol_at(const char* path, std::uintptr_t offset) {
  const Mapped file(path);
  const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(file.at(0, sizeof(Elf64_Ehdr)));
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64) {
    return {};
  }
  const auto* const sections =
      reinterpret_cast<const Elf64_Shdr*>(file.at(header->e_shoff, std::size_t{header->e_shnum} * sizeof(Elf64_Shdr)));
  if (!sections) return {};
  if (header->e_type == ET_EXEC) return {};  // its symbols are addresses, and ours are not built so
  for (unsigned i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= header->e_shnum) continue;
    const std::size_t count = sections[i].sh_size / sizeof(Elf64_Sym);
    const auto* const symbols = reinterpret_cast<const Elf64_Sym*>(file.at(sections[i].sh_offset, sections[i].sh_size));
    const Elf64_Shdr& names = sections[sections[i].sh_link];
    const char* const text = file.at(names.sh_offset, names.sh_size);
    if (!symbols || !text) continue;
    for (std::size_t s = 0; s < count; ++s) {
      if (ELF64_ST_TYPE(symbols[s].st_info) == STT_FUNC && symbols[s].st_value == offset &&
          symbols[s].st_name < names.sh_size) {
        return text + symbols[s].st_name;
      }
    }
  }
  return {};
}

/// `ns::kernel<float>` of `void ns::kernel<float>(float*, int)`.
std::string short_name(const std::string& mangled) {
  int status = 0;
  char* const readable = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  if (!readable) return mangled;
  std::string name = readable;
  std::free(readable);
  for (const char* hidden : {"(anonymous namespace)::"}) {
    for (std::size_t at; (at = name.find(hidden)) != std::string::npos;) name.erase(at, std::strlen(hidden));
  }
  if (name.rfind("void ", 0) == 0) name.erase(0, 5);
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
    if (depth == 0 && name[i] == '(') return name.substr(0, i);
  }
  return name;
}

}  // namespace

std::string name_of_kernel(const void* kernel) {
  Dl_info about{};
  if (::dladdr(kernel, &about) == 0 || !about.dli_fname) return "(unnamed)";
  if (about.dli_sname && about.dli_saddr == kernel) return short_name(about.dli_sname);
  const auto offset = reinterpret_cast<std::uintptr_t>(kernel) - reinterpret_cast<std::uintptr_t>(about.dli_fbase);
  std::string found = symbol_at(about.dli_fname, offset);
  if (found.empty()) found = symbol_at("/proc/self/exe", offset);  // a relative name, from elsewhere
  return found.empty() ? "(unnamed)" : short_name(found);
}

}  // namespace cuda_double
