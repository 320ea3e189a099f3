set(nvme_folder ${PROJECT_SOURCE_DIR}/backends/nvme)
terrace_test(nvme_test
             SOURCES ${nvme_folder}/extent_allocator_test.cc ${nvme_folder}/transfer_queue_test.cc
                     ${nvme_folder}/nvme_directory_test.cc ${nvme_folder}/nvme_backend_test.cc
                     ${nvme_folder}/nvme_damage_test.cc ${nvme_folder}/nvme_fault_test.cc
                     ${nvme_folder}/nvme_test_store.cc ${PROJECT_SOURCE_DIR}/tests/conformance/test_object.cc)
