set(nvme_tests ${PROJECT_SOURCE_DIR}/backends/nvme/tests)
terrace_test(nvme_test
             SOURCES ${nvme_tests}/extent_allocator_test.cc ${nvme_tests}/transfer_queue_test.cc
                     ${nvme_tests}/nvme_directory_test.cc ${nvme_tests}/nvme_backend_test.cc
                     ${nvme_tests}/nvme_damage_test.cc ${nvme_tests}/nvme_fault_test.cc
                     ${nvme_tests}/nvme_test_store.cc ${PROJECT_SOURCE_DIR}/tests/conformance/test_object.cc)
