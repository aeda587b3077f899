"""What a compilation did, for people and for programs: `explain` and the `Report` it returns."""
