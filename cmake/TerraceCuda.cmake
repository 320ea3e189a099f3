# TERRACE_CUDA: whether devices of CUDA are built in (kernels/cuda). One library runs with and without a driver:
# the run-time is linked statically, and looks for the driver when it is asked for a device.
#   AUTO  where a working nvcc of at least 12.8 (cudaMemcpyBatchAsync) is found; off under a sanitizer
#   ON    required
#   OFF   CountCudaDevices() is 0
# Sets TERRACE_HAVE_CUDA and TERRACE_CUDA_ARCHITECTURES.
set(TERRACE_CUDA AUTO CACHE STRING "Build in devices of CUDA: AUTO, ON or OFF")
set_property(CACHE TERRACE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TERRACE_CUDA_ARCHITECTURES "75-real;80-real;86-real;89-real;90-real;100-real;120-real;120-virtual" CACHE STRING
    "Architectures that the kernels are compiled for; the virtual one serves devices that are newer")
set(TERRACE_HAVE_CUDA FALSE)
set(oldest_nvcc 12.8)

if(TERRACE_CUDA STREQUAL "AUTO" AND TERRACE_SANITIZER)
  message(STATUS "Terrace: left out under a sanitizer: devices of CUDA")
  return()
endif()
if(NOT TERRACE_CUDA)
  return()
endif()

# Why CUDA is not built in: an error where it is asked for, a line otherwise.
function(terrace_without_cuda why)
  if(TERRACE_CUDA STREQUAL "AUTO")
    message(STATUS "Terrace: ${why}; left out: devices of CUDA")
  else()
    message(FATAL_ERROR "TERRACE_CUDA=${TERRACE_CUDA}, but ${why}")
  endif()
endfunction()

if(CMAKE_CUDA_COMPILER)
  set(TERRACE_NVCC ${CMAKE_CUDA_COMPILER})
else()
  find_program(TERRACE_NVCC nvcc HINTS $ENV{CUDACXX} ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(TERRACE_NVCC)
endif()
if(NOT TERRACE_NVCC)
  terrace_without_cuda("nvcc was not found")
  return()
endif()
execute_process(COMMAND ${TERRACE_NVCC} --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" _ "${nvcc_says}")
if(NOT CMAKE_MATCH_1 VERSION_GREATER_EQUAL oldest_nvcc)
  terrace_without_cuda("${TERRACE_NVCC} is of version '${CMAKE_MATCH_1}', and ${oldest_nvcc} is the oldest that will do")
  return()
endif()

# The compiler is tried with one architecture: what all of ours cost is paid once, for the kernels.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 75)
endif()
if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER AND "$ENV{CUDAHOSTCXX}" STREQUAL "")
  set(ENV{CUDAHOSTCXX} ${CMAKE_CXX_COMPILER})
endif()
if(NOT CMAKE_CUDA_COMPILER)
  if("$ENV{CUDACXX}" STREQUAL "")
    set(ENV{CUDACXX} ${TERRACE_NVCC})
  endif()
  include(CheckLanguage)
  check_language(CUDA)  # this host compiler may be newer than nvcc knows
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)
    terrace_without_cuda("${TERRACE_NVCC} cannot compile with $ENV{CUDAHOSTCXX}")
    return()
  endif()
endif()
enable_language(CUDA)
find_package(CUDAToolkit ${oldest_nvcc} QUIET)
if(NOT TARGET CUDA::cudart_static)
  terrace_without_cuda("the toolkit of ${CMAKE_CUDA_COMPILER} has no libcudart_static.a")
  return()
endif()

set(TERRACE_HAVE_CUDA TRUE)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # CUDA::cudart_static is linked by name
if(NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER AND CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
message(STATUS "Terrace: devices of CUDA ${CUDAToolkit_VERSION}, for ${TERRACE_CUDA_ARCHITECTURES}")
