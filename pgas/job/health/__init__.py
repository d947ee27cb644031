"""Failures: error records of kernels, failed processes, hang reports, and the end of a job."""
