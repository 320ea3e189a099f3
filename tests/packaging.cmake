# The tree and the package as users meet them: who includes whom, what is exported, what is installed, and that
# the README shows code that compiles. Label `packaging`.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)

function(terrace_script_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "COMMAND")
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES LABELS packaging TIMEOUT 600)
endfunction()

set(here ${CMAKE_CURRENT_SOURCE_DIR})
terrace_script_test(include_rules
                    COMMAND Python3::Interpreter ${here}/include_rules/check_includes.py ${PROJECT_SOURCE_DIR})
terrace_script_test(include_rules_find_planted_violations COMMAND Python3::Interpreter
                    ${here}/include_rules/check_includes.py --self-test ${PROJECT_SOURCE_DIR})
terrace_script_test(readme COMMAND Python3::Interpreter ${here}/readme/check_readme.py ${PROJECT_SOURCE_DIR})
terrace_script_test(readme_finds_planted_differences COMMAND Python3::Interpreter
                    ${here}/readme/check_readme.py --self-test ${PROJECT_SOURCE_DIR})
terrace_script_test(exported_symbols_find_planted_names
                    COMMAND Python3::Interpreter ${here}/packaging/check_exports.py --self-test)

if(TERRACE_BUILD_EXAMPLES)
  terrace_script_test(example_store_and_load
                      COMMAND ${CMAKE_COMMAND} -D PROGRAM=$<TARGET_FILE:store_and_load>
                              -D WORK_DIR=${PROJECT_BINARY_DIR}/example_store_and_load
                              -P ${here}/packaging/run_example.cmake)
  set(program)
  if(TARGET terrace_program)
    set(program $<TARGET_FILE:terrace_program>)
  endif()
  terrace_script_test(example_paged_engine COMMAND ${PROJECT_SOURCE_DIR}/examples/03_paged_engine/run.sh
                                                   $<TARGET_FILE:paged_engine> ${program})
  terrace_script_test(example_paged_engine_cuda COMMAND paged_engine ${PROJECT_BINARY_DIR}/example_paged_engine_cuda
                                                        --device cuda)
  set_tests_properties(example_paged_engine_cuda PROPERTIES LABELS "packaging;gpu" SKIP_RETURN_CODE 77)
  if(TARGET terrace_program)
    terrace_script_test(example_cache_server
                        COMMAND ${PROJECT_SOURCE_DIR}/examples/04_cache_server/run.sh $<TARGET_FILE:terrace_program>
                                $<TARGET_FILE:cache_server_engine>)
  endif()
endif()

if(TERRACE_SANITIZER)  # what follows judges what users install
  return()
endif()
terrace_script_test(exported_symbols COMMAND Python3::Interpreter ${here}/packaging/check_exports.py
                    $<TARGET_FILE:terrace> ${PROJECT_SOURCE_DIR}/include)

list(LENGTH TERRACE_PUBLIC_HEADERS num_public)
list(LENGTH TERRACE_INTERNAL_HEADERS num_internal)
terrace_script_test(header_self_containment
                    COMMAND ${CMAKE_COMMAND} -D BUILD_DIR=${PROJECT_BINARY_DIR} -D CONFIG=$<CONFIG>
                            -D NUM_PUBLIC=${num_public} -D NUM_INTERNAL=${num_internal}
                            -P ${here}/packaging/header_sets_test.cmake)
set_tests_properties(header_self_containment PROPERTIES RESOURCE_LOCK build_folder PROCESSORS 2)

if(TERRACE_INSTALL)
  terrace_script_test(installed_package
                      COMMAND ${CMAKE_COMMAND} -D BUILD_DIR=${PROJECT_BINARY_DIR} -D CONFIG=$<CONFIG>
                              -D WORK_DIR=${PROJECT_BINARY_DIR}/installed_package
                              -D EXAMPLE_DIR=${PROJECT_SOURCE_DIR}/examples/01_store_and_load
                              -D ENGINE_EXAMPLE_DIR=${PROJECT_SOURCE_DIR}/examples/03_paged_engine
                              -D SERVER_EXAMPLE_DIR=${PROJECT_SOURCE_DIR}/examples/04_cache_server
                              -D GENERATOR=${CMAKE_GENERATOR} -D CXX_COMPILER=${CMAKE_CXX_COMPILER}
                              -D VERSION_MAJOR=${PROJECT_VERSION_MAJOR} -D VERSION_MINOR=${PROJECT_VERSION_MINOR}
                              -D LIBDIR=${CMAKE_INSTALL_LIBDIR} -P ${here}/packaging/installed_package_test.cmake)
  set_tests_properties(installed_package PROPERTIES RESOURCE_LOCK build_folder)
endif()
