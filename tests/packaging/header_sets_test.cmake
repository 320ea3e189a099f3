# Compiles every public and internal header alone, and counts what was compiled: a target that lost its headers
# would pass without checking anything.
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD_DIR} --config ${CONFIG}
                        --target all_verify_interface_header_sets RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "a header does not compile alone")
endif()
foreach(set IN ITEMS "terrace:${NUM_PUBLIC}" "terrace_internal_headers:${NUM_INTERNAL}")
  string(REGEX MATCH "^(.*):([0-9]+)$" _ ${set})
  set(target ${CMAKE_MATCH_1})
  set(expected ${CMAKE_MATCH_2})
  file(GLOB_RECURSE objects ${BUILD_DIR}/CMakeFiles/${target}_verify_interface_header_sets.dir/*.o)
  list(LENGTH objects count)
  message(STATUS "${target}: ${count} headers compiled alone")
  if(count LESS expected OR expected EQUAL 0)
    message(FATAL_ERROR "${target} has ${expected} headers, ${count} were compiled")
  endif()
endforeach()
