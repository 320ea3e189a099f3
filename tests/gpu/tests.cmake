# Devices of CUDA. cuda_test needs none: what stands around the kernels, and what is said where no device is.
# gpu_test (label gpu) runs on a device, and is skipped with the reason where there is none. cuda_calls_test runs
# CudaDevice on a fake run-time. check_kernels.py reads what nvcc makes of the kernels.
terrace_test(cuda_test SOURCES gpu/bulk_copy_test.cc gpu/host_registration_test.cc gpu/no_device_test.cc)

set(gpu_sources gpu/gpu_main.cc)
if(TERRACE_HAVE_CUDA)
  # The fake is found before the run-time's archive, which is not linked then.
  terrace_test(cuda_calls_test SOURCES gpu/cuda_device_test.cc gpu/fake_cuda.cc)
  list(APPEND gpu_sources gpu/gpu_device_test.cc gpu/gpu_kernels_test.cc gpu/gpu_copier_test.cc gpu/gpu_rates_test.cc)
  target_compile_definitions(cuda_test PRIVATE TERRACE_HAVE_CUDA)
endif()
terrace_test(gpu_test TIMEOUT 900 SOURCES ${gpu_sources})
set_tests_properties(gpu_test PROPERTIES LABELS gpu SKIP_RETURN_CODE 77)

if(TERRACE_HAVE_CUDA)
  set(check_kernels ${CMAKE_CURRENT_SOURCE_DIR}/gpu/check_kernels.py)
  terrace_script_test(kernels_as_compiled COMMAND Python3::Interpreter ${check_kernels} ${CMAKE_CUDA_COMPILER}
                                                  ${CMAKE_CUDA_HOST_COMPILER} ${PROJECT_SOURCE_DIR})
  terrace_script_test(kernels_as_compiled_find_planted_faults COMMAND Python3::Interpreter ${check_kernels} --self-test
                                                                      ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_HOST_COMPILER})
endif()
