# Shared memory, both ends. shm_client is the other process of the tests.
set(shm_tests ${PROJECT_SOURCE_DIR}/connectors/server/tests)
add_executable(shm_client ${shm_tests}/shm_client_main.cc)
target_compile_options(shm_client PRIVATE ${TERRACE_WARNINGS})
target_link_libraries(shm_client PRIVATE terrace_internal)
terrace_test(shm_test
             SOURCES ${shm_tests}/shm_area_test.cc ${shm_tests}/shm_listener_test.cc ${shm_tests}/shm_process_test.cc
                     ${shm_tests}/shm_service_test.cc
                     ${PROJECT_SOURCE_DIR}/backends/remote/tests/shm_path_test.cc
             LINK terrace_server)
add_dependencies(shm_test shm_client)
target_compile_definitions(shm_test PRIVATE TERRACE_SHM_CLIENT="$<TARGET_FILE:shm_client>")
