# Installs the headers and has them compiled, each in a file of its own (headers.py): a quarter of them, by turns, as the
# commit's hash says, because all take two minutes.
#   cmake -DBUILD=... -DWORK=... -DSOURCE=... -DCOMPILERS=A,B -DSTANDARDS=20,23 [-DALONE=20] [-DSLICE=K/N]
#         -P headers_test.cmake
file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --component headers --prefix ${WORK} OUTPUT_QUIET
  COMMAND_ERROR_IS_FATAL ANY)
if(NOT SLICE)
  execute_process(COMMAND git -C ${SOURCE} rev-parse --short=7 HEAD OUTPUT_VARIABLE commit ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(turn 0)
  if(commit MATCHES "^[0-9a-f]+")
    math(EXPR turn "0x${CMAKE_MATCH_0} % 4")
  endif()
  math(EXPR turn "${turn} + 1")
  set(SLICE ${turn}/4)
endif()
message("slice ${SLICE}")
string(REPLACE "," ";" COMPILERS "${COMPILERS}")
if(NOT ALONE)
  set(ALONE ${STANDARDS})
endif()
execute_process(COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/headers.py ${WORK}/include --slice ${SLICE}
    --std ${STANDARDS} --alone ${ALONE} ${COMPILERS} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "headers.py: exit status ${status}")
endif()
