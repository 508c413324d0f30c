# The least compilers: older ones lack parts of C++20 that are used here, and would say so in pages.
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16))
  message(FATAL_ERROR "Sluice needs g++ 12 or clang 16: this is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
endif()
# Compiler settings that every target of ours shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

# ccache where it is found, unless a launcher is given. A file that uses a precompiled header is kept only with these
# allowances; without them ccache passes it on to the compiler each time.
if(SLUICE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(SLUICE_CCACHE_PROGRAM ccache)
  mark_as_advanced(SLUICE_CCACHE_PROGRAM)
  if(SLUICE_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_CCACHE_PROGRAM})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
        ${SLUICE_CCACHE_PROGRAM})
  endif()
endif()
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "(^|/)ccache$")
  # Paths below the project count from its root, so that two checkouts share what was compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${CMAKE_CXX_COMPILER_LAUNCHER})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")  # or one that comes from the cache counts as out of date
  endif()
endif()

# Includes read "sluice/engine/engine.h", in the tree as when installed: one link makes it so.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include)
file(CREATE_LINK ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include/sluice SYMBOLIC)

# Warnings are errors with the compilers that CI builds with. Another compiler's new warning must not keep a user from
# building. A project that includes us does not inherit any of it.
set(tried OFF)
if(PROJECT_IS_TOP_LEVEL AND "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" MATCHES "^(GNU 12|Clang 19)\\.")
  set(tried ON)
endif()
option(SLUICE_WERROR "Warnings are errors" ${tried})
add_library(sluice_settings INTERFACE)
target_compile_options(sluice_settings INTERFACE -Wall -Wextra -Wpedantic -Wshadow $<$<BOOL:${SLUICE_WERROR}>:-Werror>)
# GCC 12 sees overlaps in libstdc++'s own string concatenation that are not there (GCC bug 105329).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(sluice_settings INTERFACE -Wno-restrict)
endif()
# clang tells of deprecated functions that GCC 12's stable_sort calls inside of the library, and, in C++ as in C, of inner
# braces that an std::array need not have.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(sluice_settings INTERFACE -Wno-deprecated-declarations -Wno-missing-braces)
endif()
# What a file is called in errors, traces and debug information: by its path from the project's root, wherever the
# checkout lies, and whether or not ccache made the paths relative to the build folder.
file(RELATIVE_PATH SLUICE_ROOT_FROM_BUILD ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
string(REGEX REPLACE "/$" "" SLUICE_ROOT_FROM_BUILD "${SLUICE_ROOT_FROM_BUILD}")
target_compile_options(sluice_settings INTERFACE
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}/= -ffile-prefix-map=${SLUICE_ROOT_FROM_BUILD}/=
  -ffile-prefix-map=${PROJECT_BINARY_DIR}/include/sluice/= -ffile-prefix-map=include/sluice/=)
# One rounding per operation unless a kernel says otherwise: bits must not depend on what the compiler contracts.
target_compile_options(sluice_settings INTERFACE -ffp-contract=off)
# Nothing here reads errno after a maths function, and a call that may set it keeps loops with sqrt from vectorising.
target_compile_options(sluice_settings INTERFACE -fno-math-errno)
if(SLUICE_SANITIZE)
  add_compile_options(-fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
  add_compile_definitions(SLUICE_SANITIZED=1)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # The sanitizer as a library, as GCC has it: tests put an operator new of their own before the sanitizer's.
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libclang_rt.asan-${CMAKE_SYSTEM_PROCESSOR}.so
      OUTPUT_VARIABLE runtime OUTPUT_STRIP_TRAILING_WHITESPACE)
    get_filename_component(runtime "${runtime}" DIRECTORY)
    add_link_options(-shared-libsan "LINKER:-rpath,${runtime}")
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With sanitizers' calls between, GCC 12 does not see that an empty Attributes is never read, nor what <regex> moves
    # about; other builds warn of what is.
    add_compile_options(-Wno-maybe-uninitialized)
    if(SLUICE_SANITIZE MATCHES "thread")
      add_compile_options(-Wno-tsan)  # the ready queues' fences, which tests/tsan.supp answers for
    endif()
  endif()
  if(SLUICE_SANITIZE MATCHES "undefined")
    # Null pointers, and what is reached by a pointer that has wrapped or left its object, AddressSanitizer sees too;
    # nearly half of the compiler's time. A floating number that an integer type does not have gives some number
    # (docs/semantics.md, 23), which only clang's check takes for an error.
    add_compile_options(-fno-sanitize-recover=undefined
      -fno-sanitize=null,object-size,pointer-overflow,float-cast-overflow)
  endif()
endif()
