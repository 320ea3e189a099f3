# Included where the tests are.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME terrace_program_test
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/program_test.py $<TARGET_FILE:terrace_program>
                 $<TARGET_FILE:nvme_test>)
set_tests_properties(terrace_program_test PROPERTIES TIMEOUT 900)
