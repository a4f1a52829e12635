"""Services: functions that peers offer each other and call directly, no broker between."""
