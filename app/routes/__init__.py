"""HTTP routes: one thin file per endpoint family."""
