"""`python -m taskharbor.worker.isolation DESCRIPTOR`: only a worker starts it."""

from taskharbor.worker.isolation.child import main

if __name__ == "__main__":
    main()
