# Installs the build, moves the installation, and builds and runs the projects under install/ against it: as a stranger
# would, with nothing of this tree in sight.
#   cmake -DBUILD=... -DWORK=... -DPROJECTS=... -DGENERATOR=... -DCOMPILER=... -DCONFIG=... -DFLAGS=... -P install_test.cmake
function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
run("the installation" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/prefix)  # an installation must not know where it was made

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
    -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=${CONFIG}
    "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror ${FLAGS}")
  run("${project}: building" ${CMAKE_COMMAND} --build ${WORK}/${project}/build)
  run("${project}: running" ${CMAKE_COMMAND} -E chdir ${WORK}/${project} ${WORK}/${project}/build/program)
  message("${project} printed: ${output}")
endforeach()
run("plugins: running the program that is linked with the library" ${WORK}/plugins/build/linked)
run("the README's program: running" ${WORK}/whole/build/readme)
message("the README's program printed: ${output}")

run("own_operator: running" ${WORK}/whole/build/own_operator)
message("own_operator printed: ${output}")

run("ldd" ldd ${WORK}/engine_only/build/program)
if(output MATCHES "(openblas|dnnl|libz\\.|libsluice\\.)")
  message(FATAL_ERROR "a program of the engine alone loads ${CMAKE_MATCH_1}:\n${output}")
endif()
run("ldd" ldd ${WORK}/schedule_only/build/program)
if(output MATCHES "(openblas|dnnl|libz\\.|libtbb|libsluice\\.|libsluice_engine)")
  message(FATAL_ERROR "a program of schedules alone loads ${CMAKE_MATCH_1}:\n${output}")
endif()
run("ldd" ldd ${WORK}/whole/build/program)
if(NOT output MATCHES "openblas")
  message(FATAL_ERROR "the check above sees nothing: the whole program shows no OpenBLAS either:\n${output}")
endif()
