"""Why a job waits, failed or was ended, in English and Chinese."""
