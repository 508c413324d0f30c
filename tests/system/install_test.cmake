# Installs the build, moves the installation, and builds and runs the projects under install/ against it: as a stranger
# would, with nothing of this tree in sight.
#   cmake -DBUILD=... -DWORK=... -DPROJECTS=... -DGENERATOR=... -DCOMPILER=... -DCONFIG=... -DFLAGS=...
#         -DSHARED=... -DPKG_CONFIG=... -P install_test.cmake
function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
run("the installation" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
# An installation must not know where it was made, nor mind what its folder is called. (What CMake itself says to the
# linker of shared libraries bears no comma.)
set(prefix "${WORK}/a prefix, moved")
if(SHARED)
  set(prefix "${WORK}/a prefix")
endif()
file(RENAME ${WORK}/first ${prefix})

if(NOT EXISTS "${prefix}/share/sluice/tsan.supp")
  message(FATAL_ERROR "the suppressions for ThreadSanitizer are not installed")
endif()

# The program in the README is one of them.
file(READ ${PROJECTS}/../../../README.md readme)
if(NOT readme MATCHES "```cpp\n([^`]+)```")
  message(FATAL_ERROR "README.md shows no program")
endif()
set(readme_program "${CMAKE_MATCH_1}")

foreach(project engine_only schedule_only whole plugins)
  file(COPY ${PROJECTS}/${project} DESTINATION ${WORK})
  if(project STREQUAL plugins)
    file(COPY ${PROJECTS}/../../../examples/plugins/ DESTINATION ${WORK}/plugins/my_operators)
  endif()
  if(project STREQUAL schedule_only)
    file(COPY ${PROJECTS}/../../../examples/schedule_picture.cc DESTINATION ${WORK}/schedule_only)
  endif()
  if(project STREQUAL whole)
    file(WRITE ${WORK}/whole/readme.cc "${readme_program}")
    file(COPY ${PROJECTS}/../../../examples/own_operator.cc DESTINATION ${WORK}/whole)
  endif()
  run("${project}: configuring" ${CMAKE_COMMAND} -S ${WORK}/${project} -B ${WORK}/${project}/build -G ${GENERATOR}
    "-DCMAKE_PREFIX_PATH=${prefix}" -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=${CONFIG}
    "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror ${FLAGS}")
  run("${project}: building" ${CMAKE_COMMAND} --build ${WORK}/${project}/build)
  run("${project}: running" ${CMAKE_COMMAND} -E chdir ${WORK}/${project} ${WORK}/${project}/build/program)
  message("${project} printed: ${output}")
endforeach()
set(explore ${CMAKE_COMMAND} -E env SLUICE_ENGINE=explore:7)
run("engine_only under the explorer: running" ${explore} ${WORK}/engine_only/build/explored)
execute_process(COMMAND ${explore} ${WORK}/engine_only/build/program RESULT_VARIABLE status OUTPUT_VARIABLE output)
if(NOT status EQUAL 2 OR NOT output MATCHES "^SLUICE_ENGINE=explore:SEED: [^\n]* sluice::explore\n$")
  message(FATAL_ERROR "a program without the explorer does not say how it gets it (${status}):\n${output}")
endif()
run("plugins: running the program that is linked with the library" ${WORK}/plugins/build/linked)
run("the README's program: running" ${WORK}/whole/build/readme)
message("the README's program printed: ${output}")

run("own_operator: running" ${WORK}/whole/build/own_operator)
message("own_operator printed: ${output}")

run("ldd" ldd ${WORK}/engine_only/build/program)
if(output MATCHES "(openblas|dnnl|libz\\.|libpng|libjpeg|libsluice\\.)")
  message(FATAL_ERROR "a program of the engine alone loads ${CMAKE_MATCH_1}:\n${output}")
endif()
run("ldd" ldd ${WORK}/schedule_only/build/program)
if(output MATCHES "(openblas|dnnl|libz\\.|libpng|libjpeg|libtbb|libsluice\\.|libsluice_engine)")
  message(FATAL_ERROR "a program of schedules alone loads ${CMAKE_MATCH_1}:\n${output}")
endif()
run("ldd" ldd ${WORK}/whole/build/program)
if(NOT output MATCHES "openblas")
  message(FATAL_ERROR "the check above sees nothing: the whole program shows no OpenBLAS either:\n${output}")
endif()

# Without CMake, by pkg-config; COMPILER and FLAGS as above.
if(PKG_CONFIG)
  if(CUDA)  # where the backend is looked for is an option of -Wl there, which no comma goes into
    file(RENAME ${prefix} ${WORK}/moved)
    set(prefix "${WORK}/moved")
  endif()
  file(COPY ${PROJECTS}/whole/main.cc DESTINATION ${WORK}/pkg_config)
  file(GLOB_RECURSE pc "${prefix}/*/sluice.pc")
  get_filename_component(folder "${pc}" DIRECTORY)
  foreach(what --cflags --libs)
    run("pkg-config ${what}" ${CMAKE_COMMAND} -E env "PKG_CONFIG_PATH=${folder}" ${PKG_CONFIG} ${what} sluice)
    separate_arguments(given UNIX_COMMAND "${output}")
    set(${what} ${given})
  endforeach()
  if(SHARED)
    list(APPEND --libs "-Wl,-rpath,${folder}/..")
  endif()
  run("a program by pkg-config: building" ${COMPILER} -Wall -Wextra -Werror ${FLAGS} ${--cflags} ${WORK}/pkg_config/main.cc
    -o ${WORK}/pkg_config/program ${--libs})
  run("a program by pkg-config: running" ${WORK}/pkg_config/program)
  message("a program by pkg-config printed: ${output}")

  # A program of the engine alone does without run-time type information.
  run("engine_only with -fno-rtti: building" ${COMPILER} -Wall -Wextra -Werror ${FLAGS} -fno-rtti ${--cflags}
    ${WORK}/engine_only/main.cc -o ${WORK}/pkg_config/no_rtti ${--libs})
  run("engine_only with -fno-rtti: running" ${WORK}/pkg_config/no_rtti)

  # What docs/embedding.md says of `using namespace`: which names are ambiguous beside those of std, and which are not.
  set(ambiguous any greater greater_equal less less_equal logical_and logical_or logical_not)
  set(plain "")
  set(qualified "")
  foreach(name ${ambiguous})
    set(arguments "(x, y)")
    if(name MATCHES "any|logical_not")
      set(arguments "(x)")
    endif()
    string(APPEND plain "  (void)${name}${arguments};\n")
    string(APPEND qualified "  (void)sluice::${name}${arguments};\n")
  endforeach()
  foreach(how plain qualified)
    file(WRITE ${WORK}/names_${how}.cc "#include <algorithm>\n#include <any>\n#include <cmath>\n#include <functional>\n"
      "#include <sluice/sluice.h>\nusing namespace std;\nusing namespace sluice;\nint main() {\n"
      "  const NDArray x = zeros({2}), y = zeros({2});\n  (void)(exp(x), log(x), pow(x, 2), abs(x), max(x), min(x));\n"
      "  (void)(minimum(x, y), sort(x), where(x > y, x, y));\n${${how}}}\n")
  endforeach()
  set(syntax ${COMPILER} ${FLAGS} -fsyntax-only -Wno-unused-value ${--cflags})
  run("names of std and sluice" ${syntax} ${WORK}/names_qualified.cc)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env LC_ALL=C ${syntax} ${WORK}/names_plain.cc RESULT_VARIABLE status
    ERROR_VARIABLE output)
  string(REGEX MATCHALL "reference to '[a-z_]+' is ambiguous" said "${output}")
  string(REGEX REPLACE "reference to '([a-z_]+)' is ambiguous" "\\1" said "${said}")
  if(status EQUAL 0 OR NOT said STREQUAL ambiguous)
    message(FATAL_ERROR "ambiguous are '${said}', and docs/embedding.md names '${ambiguous}':\n${output}")
  endif()
endif()

# What a configuration refuses, by one line.
function(refused what wanted)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${PROJECTS}/../../.. -B ${WORK}/refused -G ${GENERATOR} ${ARGN}
    RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE output)
  file(REMOVE_RECURSE ${WORK}/refused)
  if(status EQUAL 0 OR NOT output MATCHES "${wanted}")
    message(FATAL_ERROR "${what} is not refused by '${wanted}' (${status}):\n${output}")
  endif()
endfunction()
refused("SLUICE_CUDA=foo" "SLUICE_CUDA=foo" -DCMAKE_CXX_COMPILER=${COMPILER} -DSLUICE_CUDA=foo)
refused("an old compiler" "g\\+\\+ 12 or clang 16" -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_ID_RUN=1
  -DCMAKE_CXX_COMPILER_FORCED=1 -DCMAKE_CXX_COMPILER_ID=GNU -DCMAKE_CXX_COMPILER_VERSION=11.4.0)

# SLUICE_INSTALL=OFF: a project with Sluice in it installs what is its own, and nothing of Sluice need be built for that.
run("inside: configuring" ${CMAKE_COMMAND} -S ${PROJECTS}/inside -B ${WORK}/inside -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=${CONFIG} -DSLUICE_HERE=${PROJECTS}/../../..)
run("inside: installing" ${CMAKE_COMMAND} --install ${WORK}/inside --prefix ${WORK}/inside/prefix)
file(GLOB_RECURSE installed RELATIVE ${WORK}/inside/prefix ${WORK}/inside/prefix/*)
if(NOT installed STREQUAL "share/inside/CMakeLists.txt")
  message(FATAL_ERROR "SLUICE_INSTALL=OFF installs: ${installed}")
endif()
