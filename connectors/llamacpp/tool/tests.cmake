# Included where the tests are, if the engine is at hand. The program itself, with real weights.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(serving_program "")
if(TARGET terrace_program)
  set(serving_program $<TARGET_FILE:terrace_program>)
endif()
add_test(NAME terrace_llama_program_test
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/program_test.py $<TARGET_FILE:terrace-llama>
                 ${TERRACE_MODEL_PATH} ${serving_program})
set_tests_properties(terrace_llama_program_test PROPERTIES TIMEOUT 900)
